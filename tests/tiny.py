"""Tiny real targets: Llama folders with tokenizer and chat template, random or fitted to a made-up grammar."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

WORDS = [f"w{i}" for i in range(80)]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<user>", "<assistant>"]
TOPICS = WORDS[:12]
STYLES = WORDS[12:18]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<' + m['role'] + '> ' + m['content'] + ' ' }}{% if m['role'] == 'assistant' %}{{ '</s> ' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def story(topic: str, style: str, length: int = 40) -> list[str]:
    """The grammar's only answer to "topic style": a walk fixed by the topic, in which every fifth word is the style."""
    walk = random.Random(topic)
    return [style if i % 5 == 4 else walk.choice(WORDS[18:]) for i in range(length)]


def tokenizer(folder: Path) -> None:
    """One token per word, split at blanks, saved with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(SPECIAL + WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    layers: int = 6,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 96,
    positions: int = 512,
) -> Path:
    """A Llama with random weights in float32, saved as safetensors. The uneven norm weights make a skipped norm visible."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=positions,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.05,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    tokenizer(folder)
    return folder


def fitted_llama(folder: Path, *, seed: int = 0, steps: int = 160) -> Path:
    """`tiny_llama` fitted to the grammar in some seconds: it answers "topic style" with the story, then stops."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small only wait for a second thread

    tiny_llama(folder, seed=seed)
    words = AutoTokenizer.from_pretrained(folder)
    rows = []
    for topic in TOPICS:
        for style in STYLES:
            text = f"<user> {topic} {style} <assistant> {' '.join(story(topic, style))} </s>"
            rows.append(words(text, add_special_tokens=False)["input_ids"])
    tokens = torch.tensor(rows)
    model = LlamaForCausalLM.from_pretrained(folder).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        batch = tokens[torch.randint(len(tokens), (24,))]
        labels = batch.clone()
        labels[:, :3] = -100
        loss = model(input_ids=batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    torch.set_num_threads(threads)
    model.save_pretrained(folder)
    return folder


def prompts_jsonl(path: Path) -> Path:
    """Every "topic style" as a conversation in OpenAI form."""
    import json

    lines = [json.dumps({"messages": [{"role": "user", "content": f"{topic} {style}"}]}) for topic in TOPICS for style in STYLES]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def pipeline_config(folder: Path) -> dict[str, Any]:
    """A whole pipeline run of a minute or two, servers included; its target and prompts are made in `folder`."""
    return {
        "target": {"source": str(fitted_llama(folder / "target")), "name": "tiny-grammar"},
        "data": {
            "prompts": str(prompts_jsonl(folder / "prompts.jsonl")),
            "conversations": 72,
            "held_out": 0.15,
            "prompt_tokens": 32,
            "answer_tokens": 48,
            "batch": 24,
        },
        "capture": {"boundaries": [0, 2, 4], "dtype": "float32"},
        "train": {"draft_vocab_size": 64, "epochs": 30, "lr": 3e-3, "tokens_per_batch": 512, "dtype": "float32"},
        "deploy": {"context_length": 256, "max_total_tokens": 1024, "max_running_requests": 2},
        "benchmark": {"prompts": 4, "output_tokens": 40, "steps": [2], "warmup_prompts": 1, "max_noise": 100},
        # What is tested is the pipeline: on a target this small, the server's own overhead decides about the speed.
        "promote": {"min_speedup": 0.01},
    }
