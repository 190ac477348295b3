"""Run by the Python of vLLM's environment: greedy tokens of a model folder, as JSON.

python vllm_generate.py MODEL PROMPTS.json OUT.json NEW_TOKENS
"""

import json
import os
import sys
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process, which the test can wait for


def main() -> None:
    from vllm import LLM, SamplingParams

    model, prompts_file, out, new_tokens = sys.argv[1:]
    with open(prompts_file) as file:
        prompts = [{"prompt_token_ids": prompt} for prompt in json.load(file)]
    llm = LLM(
        model=model,
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        max_num_batched_tokens=512,
        max_num_seqs=8,
    )
    greedy = SamplingParams(
        temperature=0, max_tokens=int(new_tokens), ignore_eos=True, detokenize=False
    )
    llm.generate(prompts, greedy)  # warm-up
    start = time.perf_counter()
    answers = llm.generate(prompts, greedy)
    seconds = time.perf_counter() - start
    tokens = [list(answer.outputs[0].token_ids) for answer in answers]
    with open(out, "w") as file:
        json.dump({"tokens": tokens, "tokens_per_second": sum(map(len, tokens)) / seconds}, file)


if __name__ == "__main__":
    main()
