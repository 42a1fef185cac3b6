"""The kinds of fault that a verdict can name. Slugs are stable: other people's scripts read them."""

from enum import StrEnum


class Kind(StrEnum):
    LAYER_BOUNDARIES = "layer-boundaries"
    ARCHITECTURE_FLAGS = "architecture-flags"
    TENSORS = "tensors"
    VOCAB_MAP = "vocab-map"
    TEACHER_TARGETS = "teacher-targets"
    FEATURES = "features"
    LOSS_MASK = "loss-mask"
    ROPE = "rope"
    CONTEXT_LENGTH = "context-length"
    ATTENTION_MASK = "attention-mask"
    DTYPE_QUANTISATION = "dtype-quantisation"
    SILENT_LOSS = "silent-loss"
    LAUNCH_FLAGS = "launch-flags"
    RUNTIME_INTERACTION = "runtime-interaction"
    INVALID_MEASUREMENT = "invalid-measurement"
    GREEDY_DIVERGENCE = "greedy-divergence"
    ENVIRONMENT = "environment"
    QUALITY = "quality"
    NOT_FASTER = "not-faster"
    WORSE_THAN_CHAMPION = "worse-than-champion"
