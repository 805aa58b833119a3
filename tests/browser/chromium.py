"""A headless Chromium, driven over the DevTools protocol: JSON over one WebSocket, nothing more.

    async with Browser(directory) as browser:
        page = await browser.open(url, width=1280, height=800)
        await page.until("document.title == 'x'")
        await page.click("button")

What the page logs as an error, and every exception nobody caught, is kept in `page.errors`.
"""

import asyncio
import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).parent.parent.parent
START_S = 180.0  # the first start of a fresh machine reads much from its disk
PATIENCE_S = 180.0  # a bound against hanging: some steps wait for a process to start
POLL_S = 0.02
CLICK_S = 60.0  # until a click has arrived where it was meant to
# Where to click; null while the element is not there, not shown, or covered.
AIM = """(() => {
  const wanted = document.querySelector(SELECTOR);
  if (!wanted?.checkVisibility()) return null;
  wanted.scrollIntoView({block: 'center', behavior: 'instant'});
  const box = wanted.getBoundingClientRect();
  const at = [box.x + box.width / 2, box.y + box.height / 2];
  const met = document.elementFromPoint(...at);
  if (!wanted.contains(met) && !met?.closest('label')?.contains(wanted)) return null;
  window.clickArrived = false;
  const arrived = () => { window.clickArrived = true; };
  wanted.addEventListener('click', arrived, {once: true, capture: true});
  return at;
})()"""
ARGUMENTS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-sandbox",  # tests run as root in containers; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-features=Translate,MediaRouter,OptimizationHints",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
    "--no-proxy-server",
    "--force-color-profile=srgb",
)


class BrowserError(Exception):
    """The browser or the page said no."""


def find() -> str:
    """The path of a Chromium; installed if we may. Raises BrowserError."""
    result = subprocess.run(
        [ROOT / "tools" / "find-chromium.sh"], capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise BrowserError(result.stderr.strip())
    return result.stdout.strip()


class Browser:
    """One process with a profile of its own under `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._pages: dict[str, Page] = {}

    async def __aenter__(self) -> "Browser":
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(self) -> None:
        profile = self._directory / "profile"
        program = await asyncio.to_thread(find)
        self._process = await asyncio.create_subprocess_exec(
            program, *ARGUMENTS, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        reported = profile / "DevToolsActivePort"
        deadline = time.monotonic() + START_S
        while not reported.exists() or len(reported.read_text().splitlines()) < 2:
            if self._process.returncode is not None or time.monotonic() > deadline:
                raise BrowserError(f"{program} did not start ({self._process.returncode})")
            await asyncio.sleep(POLL_S)
        port, path = reported.read_text().splitlines()[:2]
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(
            f"ws://127.0.0.1:{port}{path}", max_msg_size=64 << 20
        )
        self._reader = asyncio.create_task(self._read(self._socket))

    async def close(self) -> None:
        if self._socket is not None:
            try:
                await self.send("Browser.close")
            except (BrowserError, ConnectionError, TimeoutError):
                pass  # it goes without an answer
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()
        if self._session is not None:
            await self._session.close()
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), 10)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def open(
        self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, scale: int = 1
    ) -> "Page":
        """A page of that size, in a window of its own (no shared storage with others)."""
        context = (await self.send("Target.createBrowserContext"))["browserContextId"]
        parameters = {"url": "about:blank", "browserContextId": context}
        target = (await self.send("Target.createTarget", parameters))["targetId"]
        attach = {"targetId": target, "flatten": True}
        session = (await self.send("Target.attachToTarget", attach))["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            await page.send(f"{domain}.enable")
        await page.size(width, height, scale=scale)
        await page.colours(dark)
        await page.goto(url)
        return page

    async def send(
        self, method: str, parameters: dict[str, Any] | None = None, session: str = ""
    ) -> Any:
        assert self._socket is not None, "not started"
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            await self._socket.send_str(json.dumps(message))
            async with asyncio.timeout(PATIENCE_S):
                return await answer
        finally:
            self._answers.pop(number, None)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            said = json.loads(message.data)
            answer = self._answers.get(said.get("id", 0))
            if answer is not None and not answer.done():
                if "error" in said:
                    answer.set_exception(BrowserError(str(said["error"])))
                else:
                    answer.set_result(said["result"])
            elif said.get("sessionId") in self._pages:
                self._pages[said["sessionId"]].heard(said["method"], said["params"])
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(BrowserError("the browser is gone"))


class Page:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.errors: list[str] = []

    async def send(self, method: str, **parameters: Any) -> Any:
        return await self._browser.send(method, parameters, self._session)

    def heard(self, method: str, said: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            detail = said["exceptionDetails"]
            thrown = detail.get("exception", {}).get("description", "")
            self.errors.append(f"{detail['text']} {thrown}")
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            entry = said["entry"]
            if entry["source"] != "network":  # an answer that is no success is shown by the page
                self.errors.append(entry["text"])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "assert"):
            self.errors.append(str([argument.get("value") for argument in said["args"]]))

    async def close(self) -> None:
        await self.send("Page.close")

    async def goto(self, url: str) -> None:
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState == 'complete'")

    async def size(self, width: int, height: int, *, scale: int = 1) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip

    async def colours(self, dark: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[feature])

    async def js(self, expression: str) -> Any:
        """The value of an expression; promises are awaited. Raises BrowserError."""
        result = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise BrowserError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def until(self, condition: str, patience_s: float = PATIENCE_S) -> Any:
        """The value of `condition` once it is true. Raises BrowserError with the page's text."""
        deadline = time.monotonic() + patience_s
        shown = f"(value => value instanceof Node ? true : value)({condition})"
        while True:
            try:
                value = await self.js(shown)
            except BrowserError:
                value = None  # the page is changing just now
            if value:
                return value
            if time.monotonic() > deadline:
                text = await self.js("document.body && document.body.innerText.slice(0, 3000)")
                raise BrowserError(f"never: {condition}\n{self.errors}\n{text}")
            await asyncio.sleep(POLL_S)

    async def click(self, selector: str) -> None:
        """As a mouse does: in the middle of the first such element that is shown and that nothing
        covers. The page may move under the mouse: then again, as a person would."""
        aim = AIM.replace("SELECTOR", json.dumps(selector))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            x, y = await self.until(aim)
            for kind in ("mousePressed", "mouseReleased"):
                await self.send(
                    "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
                )
            try:
                await self.until("window.clickArrived", CLICK_S)
            except BrowserError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    async def type(self, selector: str, text: str) -> None:
        await self.js(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.send("Input.insertText", text=text)

    async def key(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    async def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """A PNG of what is shown, or of the whole page."""
        more: dict[str, Any] = {}
        if whole:
            size = (await self.send("Page.getLayoutMetrics"))["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            more = {"captureBeyondViewport": True, "clip": clip}
        shot = await self.send("Page.captureScreenshot", format="png", **more)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(shot["data"]))
