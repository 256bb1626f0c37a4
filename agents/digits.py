"""Digits drawn into small pictures, in any colour, size and place: the model reads them from the pixels."""

import base64
import io
import random
from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from areal_actors.client import LightClient

QUESTION = "Which digit is it?"
SIDE = 32
"""Width and height of a picture, in pixels."""
SIZES = range(18, 25)
"""Heights of the font, in pixels."""
SHIFT = 3
"""Largest distance from the middle, in pixels."""
DARKEST, BRIGHTEST = 0, 130
"""Range of the three colours of a digit; the ground is white."""
TRAIN_PICTURES = 4000
TEST_PICTURES = 300


class DigitsAgent:
    """Sends the picture of a task with its question."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Ask which digit the picture has, and return the answer's text."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        picture = base64.b64encode(draw_digit(task["question"], task["answer"])).decode()
        content: list[Any] = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
            {"type": "text", "text": QUESTION},
        ]
        completion = await client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": content}]
        )
        return completion.choices[0].message.content or ""


def draw_digit(name: str, digit: str) -> bytes:
    """Returns a PNG file of a digit; colour, size and place follow from the name of its task."""
    rng = random.Random(name)
    image = Image.new("RGB", (SIDE, SIDE), (255, 255, 255))
    middle = tuple(SIDE / 2 + rng.randint(-SHIFT, SHIFT) for _ in range(2))
    colour = tuple(rng.randint(DARKEST, BRIGHTEST) for _ in range(3))
    font = ImageFont.load_default(rng.choice(SIZES))
    ImageDraw.Draw(image).text(middle, digit, font=font, fill=colour, anchor="mm")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def tasks() -> dict[str, list[dict[str, str]]]:
    """Pictures to train on, and held-out ones; the same on every machine with the same Pillow."""
    return {split: draw_tasks(split, count) for split, count in (("train", TRAIN_PICTURES), ("test", TEST_PICTURES))}


def draw_tasks(split: str, count: int) -> list[dict[str, str]]:
    """Returns tasks; a picture follows from its task's name, which has the split, so that no other split has it."""
    rng = random.Random(f"digits {split}")
    return [{"question": f"{split} picture {number}", "answer": str(rng.randrange(10))} for number in range(count)]


def reward(task: Mapping[str, Any], output: str) -> float:
    """1 if the answer is the digit and nothing else, else 0."""
    return float(output.strip() == task["answer"])
