"""The models that are served most, for SGLANG_EXTERNAL_MODEL_PACKAGE: with it set, SGLang imports its 250 model files
only when it is asked for a model that is not here (sglang 0.5.23, srt/models/registry.py). The classes are SGLang's own.
"""
