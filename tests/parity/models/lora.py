def added(params, name, x, case):
    """What an adapter (Hu et al. 2021) adds to what the linear layer `name` makes of x; 0 where there is none.
    case["lora"] is alpha by rank."""
    if name + ".lora_A.weight" not in params:
        return 0
    return case["lora"] * (x @ params[name + ".lora_A.weight"].T @ params[name + ".lora_B.weight"].T)
