"""A Hugging Face folder of a trained model: what transformers opens and vLLM serves."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from vtool.diagnostics import Diagnostic, Findings
from vtool.models.families import family
from vtool.models.processor import Processor


def export(model: Any, state: Mapping[str, Tensor], processor: Processor, family_name: str, folder: Path) -> Path:
    """Write model, tokenizer, chat template and processor settings, and put them in place whole.

    Args:
        model: gives its config; its own weights are not looked at.
        state: the whole weights by name, tied ones once.

    Raises:
        Findings: `run-folder-unwritable`; an export that was there before is then still there.
    """
    temporary = folder.with_name(f".writing-{folder.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        model.save_pretrained(temporary, state_dict=dict(state))
        processor.tokenizer.save_pretrained(temporary)
        processor.image_processor.save_pretrained(temporary)
        own = json.loads((temporary / "preprocessor_config.json").read_text())
        for name, settings in family(family_name).serving_files(own).items():
            (temporary / name).write_text(json.dumps(settings, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(temporary, folder)
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # The tokenizers library raises a bare Exception on a full disk.
        if not (isinstance(error, OSError | SafetensorError) or type(error) is Exception):
            raise
        raise Findings(Diagnostic("run-folder-unwritable", f"{folder}: {error}", parameter="run.dir")) from error
    return folder
