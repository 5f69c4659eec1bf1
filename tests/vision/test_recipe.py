"""The recipe of an image classifier to try."""

import sys
from pathlib import Path

from PIL import Image

from captum_iba.vision import ImageExplainer

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))
import shapes


def test_a_classifier_of_shapes_and_images_to_explain(tmp_path, capsys):
    shapes.main([str(tmp_path), "--steps", "1"])
    assert capsys.readouterr().out.startswith(f"{tmp_path}: accuracy ")
    images = sorted((tmp_path / "images").iterdir())
    assert len(images) == 12 and len(list((tmp_path / "others").iterdir())) == 200
    explainer = ImageExplainer.from_pretrained(tmp_path / "model")
    result = explainer.explain(images[0], check=True)
    assert result.predicted_label in shapes.CLASSES and result.name == "000_circle.png"
    assert result.heat_map.shape == Image.open(images[0]).size == (64, 64)
