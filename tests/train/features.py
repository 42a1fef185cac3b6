"""A tiny target's conversations and features, as the data and capture stages leave them."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from tasks.products import CaptureProduct, Conversation, DataProduct, TargetProduct
from tasks.store import sha256_file
from tasks.wiring.record import Features, TargetPrint, WiringRecord

BOUNDARIES = [1, 3, 4]


def target_product(folder: Path) -> TargetProduct:
    weights = sha256_file(folder / "model.safetensors")
    made = TargetPrint(
        config="c", weights=weights, tokenizer="t", chat_template="t", family="llama", num_layers=6, hidden_size=64, vocab_size=96
    )
    return TargetProduct(folder=folder, name="tiny", print=made, sha256=weights)


def make_data(folder: Path, *, train: int = 12, held_out: int = 4, tokens: int = 30) -> DataProduct:
    """Conversations of random words, lengths around `tokens`; the second half of each is the answer."""
    words = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    conversations = []
    for row in range(train + held_out):
        length = tokens + words.randrange(-5, 6)
        prompt = length // 2
        conversations.append(
            Conversation(
                id=str(row),
                split="train" if row < train else "held_out",
                tokens=[words.randrange(6, 86) for _ in range(length)],
                spans=[(prompt, length)],
                prompt_length=prompt,
            )
        )
    path = folder / "conversations.jsonl"
    path.write_text("".join(f"{conversation.model_dump_json()}\n" for conversation in conversations))
    return DataProduct(
        folder=folder,
        sha256=sha256_file(path),
        train=train,
        held_out=held_out,
        tokens=sum(len(conversation.tokens) for conversation in conversations),
        supervised_tokens=sum(stop - start for conversation in conversations for start, stop in conversation.spans),
        dropped={},
    )


@torch.inference_mode()
def make_capture(folder: Path, data: DataProduct, target: TargetProduct) -> CaptureProduct:
    """Features of the real target, taken as `transformers` gives them, the last state by a hook before the final norm."""
    model = LlamaForCausalLM.from_pretrained(target.folder).eval()
    last: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda norm, inputs: last.append(inputs[0]))
    (folder / "hidden_states").mkdir(parents=True, exist_ok=True)
    lines = data.conversations.read_text().splitlines()
    for row, line in enumerate(lines):
        tokens = torch.tensor(Conversation.model_validate_json(line).tokens)
        states = model.model(tokens[None], output_hidden_states=True).hidden_states
        features = torch.stack([*(states[boundary][0] for boundary in BOUNDARIES), last.pop()[0]], 1)
        save_file({"hidden_states": features.bfloat16(), "token_ids": tokens}, folder / "hidden_states" / f"hs_{row}.safetensors")
    WiringRecord(
        target=target.print,
        features=Features(boundaries=BOUNDARIES, dtype="bfloat16", compute_dtype="float32"),
        data_sha256=data.sha256,
    ).write(folder)
    return CaptureProduct(
        folder=folder, sha256=f"of {data.sha256}", boundaries=BOUNDARIES, rows=len(lines), tokens=data.tokens, worst_cosine=1.0
    )
