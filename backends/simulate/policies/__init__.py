"""Scheduling policies, one file per engine: vLLM, SGLang, TensorRT-LLM and ATOM.

Each file registers a subclass of `Policy` (`simulate/server.py`) under the name of its engine and names the
functions of the engine that it follows. Start with `vllm.py`. To add an engine, add a file with its name and
a class registered in `POLICIES`; no other file lists the policies. A policy decides which prompts a step
prefills (`fill`, `admits`) and frees memory when KV blocks run short (`relieve`).

May import: the modules of `simulate`, and `llmir.base`.
"""
