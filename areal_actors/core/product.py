"""What this product hands to the bus: its name in subjects and streams, and what its messages have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from areal_bus.product import Product, declare_product

FOLDER: Final = Path(__file__).parents[1] / "messages" / "dictionaries"
PRODUCT: Final = Product(prefix="areal", dictionaries={number: FOLDER / f"dictionary_{number}.bin" for number in (1, 2)})

declare_product(PRODUCT)
