"""A real headless Chromium, driven over its DevTools protocol: pages, scripts, keys, console messages and requests."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = os.environ.get("AREAL_CHROMIUM", "") or shutil.which("chromium") or ""
PATIENT = 15.0
"""Seconds that anything in a browser may take on a very busy machine."""
OPTIONS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    ),
    *("--remote-debugging-port=0", "--window-size=1280,800", "--hide-scrollbars", "--disable-dev-shm-usage"),
)


class Tab:
    """A page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.console: list[str] = []
        """Errors and warnings: of scripts, of the console, of policies."""
        self.requested: list[str] = []
        """Addresses of all requests."""

    async def receive(self) -> None:
        async for message in self._socket:
            found = message.json()
            if "id" in found:
                self._answers.pop(found["id"]).set_result(found)
            elif found["method"] == "Runtime.exceptionThrown":
                self.console.append(str(found["params"]["exceptionDetails"]))
            elif found["method"] == "Runtime.consoleAPICalled" and found["params"]["type"] in (
                "error",
                "warning",
                "assert",
            ):
                self.console.append(str(found["params"]["args"]))
            elif found["method"] == "Log.entryAdded" and found["params"]["entry"]["level"] in ("error", "warning"):
                self.console.append(str(found["params"]["entry"]))
            elif found["method"] == "Network.requestWillBeSent":
                self.requested.append(found["params"]["request"]["url"])

    async def ask(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        found = await asyncio.wait_for(self._answers[number], PATIENT)
        assert "error" not in found, (method, found)
        return found["result"]

    async def open(self, url: str) -> None:
        await self.ask("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = await self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str, *, every: float = 0.1) -> Any:
        """Wait until an expression is true in the page; returns its value. `every`: seconds between two looks."""
        for _ in range(int(PATIENT / every)):
            try:
                if value := await self.run(script):
                    return value
            except AssertionError:
                pass  # the page is being loaded
            await asyncio.sleep(every)
        text = await self.run("document.body.innerText.slice(0, 3000)")
        raise AssertionError(f"{script} did not become true; the page: {text}; its console: {self.console}")

    async def press(self, key: str, *, shift: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 if shift else 0, **text)

    async def dark(self, *, dark: bool) -> None:
        await self.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    async def picture(self, path: Path) -> None:
        found = await self.ask("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Tab]:
    """One tab of a new browser, which has its profile in a folder."""
    words = [*OPTIONS, f"--user-data-dir={folder}", "about:blank"]
    # It leaves files and a socket there, whose path has to be short.
    scratch = tempfile.TemporaryDirectory(prefix="chromium-", dir="/tmp", ignore_cleanup_errors=True)
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *words,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "TMPDIR": scratch.name},
    )
    try:
        port = folder / "DevToolsActivePort"
        async with asyncio.timeout(PATIENT):
            while not port.is_file() or not port.read_text().strip():
                assert process.returncode is None, "chromium ended"
                await asyncio.sleep(0.05)
        at = f"http://127.0.0.1:{port.read_text().splitlines()[0]}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{at}/json/list") as answer:
                address = next(page["webSocketDebuggerUrl"] for page in await answer.json() if page["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                tab = Tab(socket)
                receiving = asyncio.create_task(tab.receive())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.ask(f"{domain}.enable")
                await tab.ask(
                    "Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False
                )
                yield tab
                receiving.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        scratch.cleanup()
