"""The product, as the bus sees it: its name in subjects and streams, and the dictionaries for its messages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from areal_bus.product import Product, declare_product

FOLDER: Final = Path(__file__).parents[1] / "messages" / "dictionaries"
PRODUCT: Final = Product(
    prefix="areal", dictionaries={number: FOLDER / f"dictionary_{number}.bin" for number in (1, 2, 3)}
)

declare_product(PRODUCT)
