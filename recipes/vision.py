"""The recipe vision.toml without a GPU: makes a tiny model with vision, then trains it.

`python recipes/vision.py [KEY=VALUE ...]`; `seed=1` is another model, too.

The model is a Qwen2.5-VL of 170,000 parameters with random weights. Supervised steps teach it to read digits in
pictures, and, on purpose, to answer with the next digit most of the time, which reinforcement learning corrects.
"""

import io
import json
import random
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessorPil

DIGITS = runpy.run_path(str(Path(__file__).parent.parent / "agents" / "digits.py"))
IMAGE, VIDEO, VISION_START, VISION_END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = (END_OF_TEXT, TURN_START, TURN_END, VISION_START, VISION_END, IMAGE, VIDEO)
CONTEXT = 128
PATCH, MERGE, FRAMES = 8, 2, 2
"""Side of a patch in pixels, patches of a token in height and width, frames of a patch."""
CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}{%- else %}
{%- for part in message.content %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}
{%- endfor %}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
STEPS, BATCH = 300, 64
"""Supervised steps, and demonstrations of each."""
WRONG_SHARE = 0.65
"""Share of demonstrations that name the next digit instead."""
LR = 3e-3
"""Highest learning rate of the supervised steps."""


def main(overrides: list[str]) -> int:
    """Make the model of the seed unless it is there, and run the recipe; returns the exit status."""
    seed = next((word.removeprefix("seed=") for word in overrides if word.startswith("seed=")), "0")
    folder = Path("runs") / "models" / f"digits-{seed}"
    if not folder.is_dir():
        make_model(folder, int(seed))
    recipe = str(Path(__file__).with_suffix(".toml"))
    words = [recipe, "profile=embedded", f"model={folder}", *overrides]
    return subprocess.run([sys.executable, "-m", "areal_actors", "run", *words], check=False).returncode


def make_model(folder: Path, seed: int, steps: int = STEPS) -> None:
    """Make the model in a new folder, which has its name when it is whole."""
    torch.set_num_threads(1)  # sums depend on it
    torch.manual_seed(seed)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokenizer = write_files(partial)
    model = random_model(tokenizer)
    warm_up(model, tokenizer, Qwen2VLImageProcessorPil.from_pretrained(partial), steps=steps, seed=seed)
    model.save_pretrained(partial)
    partial.rename(folder)


def write_files(folder: Path) -> Tokenizer:
    """Write the files of tokenizer and preprocessing; returns the tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = ["system\nuser\nassistant\n", DIGITS["QUESTION"]] * 9
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    processing = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": DIGITS["SIDE"] ** 2,
        "max_pixels": DIGITS["SIDE"] ** 2,
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "image_mean": [1.0, 1.0, 1.0],  # the ground is 0, so that a patch is what is drawn on it
        "image_std": [0.25, 0.25, 0.25],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(processing, indent=2), encoding="utf-8")
    return tokenizer


def random_model(tokenizer: Tokenizer) -> Qwen2_5_VLForConditionalGeneration:
    """Returns the untrained model."""
    ids = {mark: tokenizer.token_to_id(mark) for mark in MARKS}
    text = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.08,  # at a hidden size this small the usual 0.02 learns slowly
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        "eos_token_id": ids[TURN_END],
        "bos_token_id": None,
        "pad_token_id": ids[END_OF_TEXT],
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "window_size": DIGITS["SIDE"],
        "fullatt_block_indexes": [1],
        "initializer_range": 0.08,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids[IMAGE],
        video_token_id=ids[VIDEO],
        vision_start_token_id=ids[VISION_START],
        vision_end_token_id=ids[VISION_END],
        eos_token_id=ids[TURN_END],
        tie_word_embeddings=False,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def warm_up(model: Any, tokenizer: Tokenizer, processor: Any, *, steps: int, seed: int) -> None:
    """Train answers to pictures of a split of their own, most of which name the next digit."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=steps + 1)
    examples = DIGITS["draw_tasks"](f"warm-up {seed}", steps * BATCH)
    rng = random.Random(seed)
    for step in range(steps):
        logps = answer_logps(model, tokenizer, processor, examples[step * BATCH : (step + 1) * BATCH], rng)
        optimizer.zero_grad()
        (-logps.mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            print(f"making the model: step {step + 1} of {steps}, loss {-logps.mean().item():.3f}", flush=True)


def answer_logps(
    model: Any, tokenizer: Tokenizer, processor: Any, examples: list[dict[str, str]], rng: random.Random
) -> torch.Tensor:
    """Returns the log-probabilities of demonstrated answers, `[examples, 2]`, a digit and the end of the turn."""
    drawn = [DIGITS["draw_digit"](example["question"], example["answer"]) for example in examples]
    seen = processor(images=[Image.open(io.BytesIO(png)) for png in drawn], return_tensors="pt")
    picture = f"{VISION_START}{IMAGE * (DIGITS['SIDE'] // PATCH // MERGE) ** 2}{VISION_END}"
    prompt = f"{TURN_START}user\n{picture}{DIGITS['QUESTION']}{TURN_END}\n{TURN_START}assistant\n"
    rows = []
    for example in examples:
        answer = (int(example["answer"]) + (rng.random() < WRONG_SHARE)) % 10
        rows.append(tokenizer.encode(f"{prompt}{answer}{TURN_END}").ids)
    ids = torch.tensor(rows)  # equally long: a digit is one token
    logits = model(
        input_ids=ids,
        pixel_values=seen["pixel_values"],
        image_grid_thw=seen["image_grid_thw"],
        mm_token_type_ids=(ids == tokenizer.token_to_id(IMAGE)).int(),
    ).logits
    logps: torch.Tensor = logits[:, -3:-1].log_softmax(-1).gather(-1, ids[:, -2:, None])
    return logps[..., 0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
