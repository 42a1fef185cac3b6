"""What SGLang makes of a list of ids, by family; the tampered folders are in tests/faults/test_export_faults.py."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.verdict import BadInput, Outcome
from tasks.wiring.kinds import Kind
from tasks.wiring.record import Draft, Features, Rope, TargetPrint, WiringRecord
from tasks.wiring.record_check import check_record
from tasks.wiring.rope import theta_of
from tasks.wiring.served_config import IDS, TargetSizes, check_boundaries_fed, check_context, check_dtype, check_rope, check_window
from tasks.wiring.vocabulary import vocab_map

LLAMA = {"model_type": "llama", "num_hidden_layers": 30, "hidden_size": 64, "vocab_size": 96, "num_attention_heads": 4, "rope_theta": 1e5}
DEEPSEEK = {**LLAMA, "model_type": "deepseek_v3", "num_hidden_layers": 61}
KIMI = {
    "model_type": "kimi_k25",
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {**DEEPSEEK, "model_type": "kimi_k2"},
}


def config(ids: Any, **more: Any) -> dict[str, Any]:
    return {"eagle_config": {IDS: ids}, "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 1e5, **more}


@pytest.mark.parametrize(
    ("target", "ids", "verdict", "says"),
    [
        (LLAMA, [1, 14, 26], Outcome.PASS, "[2, 15, 27]"),
        (LLAMA, [-1, 2, 28], Outcome.PASS, "[0, 3, 29]"),
        (LLAMA, [1, 14, 29], Outcome.FAIL, "[2, 15]"),
        (LLAMA, [14, 1, 26], Outcome.FAIL, "write [1, 14, 26]"),
        (LLAMA, [14], Outcome.FAIL, "One single feature"),
        (LLAMA, None, Outcome.WARN, "default, boundaries [2, 15, 27]"),
        (DEEPSEEK, [0, 3, 31], Outcome.PASS, "[0, 3, 31]"),
        (DEEPSEEK, [30, 58, 1], Outcome.PASS, "[1, 30, 58]"),
        (DEEPSEEK, [1, 30, 58], Outcome.WARN, "feeds [2, 31, 59]"),
        (DEEPSEEK, [2, 30, 61], Outcome.FAIL, "RuntimeError"),
        (KIMI, [2, 30, 58], Outcome.PASS, "[2, 30, 58]"),
        ({**LLAMA, "model_type": "qwen3_moe"}, [1, 14, 29], Outcome.FAIL, "IndexError"),
        ({**LLAMA, "model_type": "qwen3_moe"}, [-2, 14, 26], Outcome.FAIL, "not sorted"),
    ],
)
def test_ids(target: dict[str, Any], ids: list[int] | None, verdict: Outcome, says: str) -> None:
    check = check_boundaries_fed(config(ids), TargetSizes.of(target))
    assert check.verdict is verdict and says in check.message, check
    assert check.kind == (None if verdict is Outcome.PASS else Kind.LAYER_BOUNDARIES)


@pytest.mark.parametrize(("top", "verdict"), [([3, 15, 27], Outcome.FAIL), ([2, 15, 27], Outcome.WARN)])
def test_a_list_at_the_top_is_not_read(top: list[int], verdict: Outcome) -> None:
    assert check_boundaries_fed({IDS: top}, TargetSizes.of(LLAMA)).verdict is verdict


@pytest.mark.parametrize(
    ("rope", "verdict"), [({"rope_theta": 1e5}, Outcome.PASS), ({"rope_theta": 1e6}, Outcome.WARN), ({}, Outcome.WARN)], ids=str
)
def test_another_theta_than_the_targets_is_something_to_look_at(rope: dict[str, Any], verdict: Outcome) -> None:
    assert check_rope({"hidden_size": 64, "num_attention_heads": 4, **rope}, theta_of(LLAMA)).verdict is verdict


def test_a_quantised_target_is_something_to_look_at() -> None:
    target = TargetSizes.of({**LLAMA, "quantization_config": {"quant_method": "awq"}})
    check = check_dtype({"dtype": "bfloat16"}, {"bfloat16"}, target)
    assert (check.verdict, check.kind) == (Outcome.WARN, Kind.DTYPE_QUANTISATION) and "awq" in check.message


def test_a_window_is_something_to_look_at() -> None:
    check = check_window({"sliding_window": 2048, "layer_types": ["sliding_attention"]})
    assert (check.verdict, check.kind) == (Outcome.WARN, Kind.ATTENTION_MASK) and "2048" in check.message
    assert check_window({"sliding_window": 2048}).verdict is Outcome.PASS  # as configs have it that do not use it


@pytest.mark.parametrize(("length", "verdict"), [(512, Outcome.PASS), (80, Outcome.PASS), (79, Outcome.FAIL), (None, Outcome.FAIL)])
def test_positions(length: int | None, verdict: Outcome) -> None:
    assert check_context({"max_position_embeddings": length}, 80).verdict is verdict


def test_a_target_without_sizes_is_refused() -> None:
    with pytest.raises(BadInput, match="num_hidden_layers"):
        TargetSizes.of({"model_type": "llama", "hidden_size": 64, "vocab_size": 96})


class TestTheStory:
    """Trained on [0, 3, 31] for a deep target; the server is given ids that feed [3, 31, 59]."""

    trained = WiringRecord(
        target=TargetPrint(
            config="0", weights="0", tokenizer="0", chat_template="0", family="llama", num_layers=61, hidden_size=64, vocab_size=96
        ),
        features=Features(boundaries=[0, 3, 31], dtype="bfloat16", compute_dtype="bfloat16"),
        data_sha256="0",
        draft=Draft(
            hidden_size=64,
            intermediate_size=80,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            rms_norm_eps=1e-5,
            hidden_act="silu",
            max_position_embeddings=512,
            rope=Rope(theta=1e5, head_dim=16),
            norm_before_fc=False,
            fc_norm=False,
            norm_output=False,
            ttt_steps=3,
        ),
        vocab_map=vocab_map(None, 96),
    )

    def served(self, ids: list[int]) -> dict[str, Any]:
        draft = self.trained.draft
        assert draft is not None
        return {**draft.model_dump(exclude={"rope", "ttt_steps", "attention_window"}), "rope_theta": 1e5, "eagle_config": {IDS: ids}}

    def test_the_message_says_what_to_set(self) -> None:
        checks = check_record(self.trained, self.served([2, 30, 58]), None, TargetSizes.of({**LLAMA, "num_hidden_layers": 61}))
        assert [(check.verdict, check.kind) for check in checks] == [(Outcome.FAIL, Kind.LAYER_BOUNDARIES)]
        assert "feeds boundaries [3, 31, 59]; the drafter was trained on [0, 3, 31]; set" in checks[0].message
        assert "to [-1, 2, 30]" in checks[0].message

    def test_the_ids_that_it_says_pass(self) -> None:
        checks = check_record(self.trained, self.served([-1, 2, 30]), None, TargetSizes.of({**LLAMA, "num_hidden_layers": 61}))
        assert [check.verdict for check in checks] == [Outcome.PASS]

    def test_on_another_family_the_same_ids_mean_something_else(self) -> None:
        for_deepseek = self.trained.model_copy(update={"target": self.trained.target.model_copy(update={"family": "kimi_k2"})})
        assert [c.verdict for c in check_record(for_deepseek, self.served([0, 3, 31]), None, TargetSizes.of(DEEPSEEK))] == [Outcome.PASS]
        checks = check_record(self.trained, self.served([0, 3, 31]), None, TargetSizes.of(DEEPSEEK))
        assert [check.name for check in checks if check.verdict is Outcome.FAIL] == ["wiring record: target"]
