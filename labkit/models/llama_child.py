"""Run llama.cpp on one model file: python llama_child.py SETTINGS; requests and their timings are lines of JSON.

A separate process, as llama.cpp starts threads and ends the process at an error. It imports nothing of labkit.
"""

import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import xllamacpp


def start(
    folder: str, path: str, threads: int, context: int, at_once: int, numa: bool, repack: bool, proposed: int
) -> xllamacpp.Server:
    """Return llama.cpp's server, which listens on a socket in a private folder (a name in .sock), not on a port."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = path, context * at_once, at_once
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.hostnames, params.n_gpu_layers, params.verbosity = [f"{folder}/s.sock"], 0, 1
    params.ui = params.endpoint_slots = params.fit_params = params.cache_idle_slots = False
    params.cache_ram_mib = 0  # no cache of earlier prompts beyond each slot's own
    params.no_extra_bufts = not repack
    params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE  # once into memory, not mapped and copied
    params.lazy_mode = xllamacpp.llama_lazy_mode.LLAMA_LAZY_MODE_OFF
    if numa:
        params.numa = xllamacpp.ggml_numa_strategy.GGML_NUMA_STRATEGY_DISTRIBUTE
    if proposed:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = 3, proposed
    return xllamacpp.Server(params)


def answer(server: xllamacpp.Server, tokens: list[int], count: int, cached: bool, place: int) -> dict[str, object]:
    """Return the timings of a request, in which the likeliest token is always chosen, and the text."""
    fixed = {"temperature": 0, "samplers": ["temperature"], "ignore_eos": True, "id_slot": place}
    result = server.handle_completions({"prompt": tokens, "max_tokens": count, "cache_prompt": cached, **fixed})
    return {**result["timings"], "text": result["choices"][0]["text"]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="llama-") as private, ThreadPoolExecutor(64) as threads:
        server = start(private, **json.loads(sys.argv[1]))
        print(json.dumps(xllamacpp.get_system_info()), flush=True)
        for line in sys.stdin:
            waiting = [threads.submit(answer, server, *request) for request in json.loads(line)]
            print(json.dumps([request.result() for request in waiting]), flush=True)
        del server
