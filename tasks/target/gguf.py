"""A GGUF file as a Hugging Face folder in float32.

float32, since a de-quantised weight (half-precision scale times integer, plus half-precision minimum) is no bfloat16
number: rounding it would make a target that is not the one in the file. Who wants to compute in bfloat16 rounds on loading.
"""

from __future__ import annotations

from pathlib import Path

_PAD = "<|endoftext|>"


def convert(source: Path, folder: Path) -> None:
    """Write config, tokenizer, chat template and float32 safetensors of `source` into `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # transformers 5.19 refuses to save a model that was read from GGUF; one built from its config alone it saves.
    config = loaded.config.from_dict(
        {k: v for k, v in loaded.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
    )
    config.architectures = [type(loaded).__name__]
    # The file says pad = end of turn; whoever masks padding then masks every end of a turn.
    if _PAD in tokenizer.get_vocab():
        tokenizer.pad_token = _PAD
        config.pad_token_id = tokenizer.pad_token_id
    with torch.device("meta"):
        model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict(), assign=True, strict=True)
    model.tie_weights()
    model.generation_config.pad_token_id = config.pad_token_id
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
