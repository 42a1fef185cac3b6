"""SGLang's CPU engine without its native kernels: what is replaced, by what, and checked how.

`entry_points` is what SGLang calls. `standin` takes the place of the native `sgl_kernel`, and `slots` and `tree` hold its functions.
`backend`, with `rows` and `attention`, is the attention backend; `linear` and `rotary` compute what SGLang's fallbacks compute slowly;
`hooks` ties all in.
`refusals` and `self_check` keep all of it from being wrong in silence.
"""

SGLANG_VERSION = "0.5.23"
BACKEND = "cpu_sdpa"
