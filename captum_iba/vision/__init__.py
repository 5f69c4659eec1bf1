"""Image classifiers explained, in three lines (needs ``captum-iba[vision]``).

::

    from captum_iba.vision import ImageExplainer
    explainer = ImageExplainer.from_pretrained("my/image-classifier")
    explainer.explain("photo.jpg").save_html("photo.html")
"""

from captum_iba._reading.removal_check import ImageCheck
from captum_iba.vision.grids import Grid, ImageLayer, find_image_layers
from captum_iba.vision.image_explainer import ImageExplainer
from captum_iba.vision.image_model import ImageClassifier
from captum_iba.vision.image_result import ImageAttribution
from captum_iba.vision.image_settings import IMAGE_PRESETS
from captum_iba.vision.images import read_image
from captum_iba.vision.layer_map import LayerMap
from captum_iba.vision.region_check import leading_by_removal
from captum_iba.vision.regions import RegionRemoval, RemovalOrder, order_by_removal, superpixels, tile_regions

__all__ = [
    "IMAGE_PRESETS",
    "Grid",
    "ImageAttribution",
    "ImageCheck",
    "ImageClassifier",
    "ImageExplainer",
    "ImageLayer",
    "LayerMap",
    "RegionRemoval",
    "RemovalOrder",
    "find_image_layers",
    "leading_by_removal",
    "order_by_removal",
    "read_image",
    "superpixels",
    "tile_regions",
]
