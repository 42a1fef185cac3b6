"""SGLang's own classes."""

from sglang.srt.models.llama_eagle3 import EntryClass as EntryClass
