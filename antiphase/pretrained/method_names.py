"""The methods that change a pretrained model, by name. Listing them needs no PyTorch."""

LORA_RANK = 16
METHODS = {
    "dex": "O - lam f_D(O) on the selected heads, with W_K, W_V and W_O",
    "plus-sign": "DEX with a plus: O + lam f_D(O)",
    "adapter-only": "DEX with everything but f_D and lam frozen",
    "kvo-only": "W_K, W_V and W_O, without the operation",
    "lora": f"low-rank changes of rank {LORA_RANK} to W_Q, W_K, W_V and W_O",
    "full": "all parameters",
    "v2": "a differential model (V2) that starts as the same function; its attention is trained",
}
CONTROLS = ("plus-sign", "adapter-only", "kvo-only", "lora", "full")
