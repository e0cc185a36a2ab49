"Prompts of random tokens."

import random


def random_prompts(
    lengths,  # of the prompts
    vocab_size: int = 64,
    seed: int = 0,
    lowest: int = 0,  # token
) -> list[list[int]]:
    "Prompts of these lengths, of tokens from `lowest` to below `vocab_size`."
    draw = random.Random(seed)
    prompts = []
    for n in lengths:
        prompts.append([draw.randrange(lowest, vocab_size) for _ in range(n)])
    return prompts
