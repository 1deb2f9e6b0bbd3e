"""Measure how the gallery scrolls with 20,000 outputs: `python -m tests.system.browser.scrolling`.

Counts frames longer than 50 ms. The outputs are rows without files; the browser draws placeholder posters.
"""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from playwright.async_api import Page

from tests.support.chromium import PageDriver, open_chromium
from tests.support.desk import make_desk

OUTPUTS = 20_000
SECONDS = 6
_POSTER = (
    "<svg xmlns='http://www.w3.org/2000/svg' width='48' height='48'><rect width='48' height='48' fill='#467'/></svg>"
)
_NUMBERS = f"WITH RECURSIVE c(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM c WHERE n < {OUTPUTS}) "
_JOBS = "tenant_id, user_id, workflow_id, workflow_hash, provider, stage, status, priority, max_attempts"
_MORE = "request_digest, input_payload, reserved_tokens, available_at, created_at, completed_at"
_FILES = "tenant_id, user_id, disk, mime_type, size, created_at, used_at"
_MADE = "tenant_id, item_no, workflow_id, kind, label, texts"
# Copies of the first output in other shapes, one for each minute before it and four for each job.
_FILL = (
    f"INSERT INTO ai_jobs (id, idempotency_key, {_JOBS}, {_MORE}) {_NUMBERS} "
    f"SELECT printf('many-%05d', n), 'k' || n, {_JOBS}, {_MORE} FROM c, (SELECT * FROM ai_jobs LIMIT 1)",
    f"INSERT INTO files (id, path, width, height, poster, {_FILES}) {_NUMBERS} SELECT printf('many-%05d', n), "
    f"path || '-' || n, 400 + n * 37 % 900, 400 + n * 53 % 900, 'webp', {_FILES} FROM c, "
    "(SELECT files.* FROM files JOIN outputs USING (id) LIMIT 1)",
    f"INSERT INTO outputs (id, job_id, number, created_at, {_MADE}) {_NUMBERS} SELECT printf('many-%05d', n), "
    "printf('many-%05d', n - (n - 1) % 4), (n - 1) % 4 + 1, "
    "strftime('%Y-%m-%d %H:%M:%f', created_at, '-' || n || ' minutes') || '000', "
    f"{_MADE} FROM c, (SELECT * FROM outputs LIMIT 1)",
)
_SCROLL = """async ([seconds, end]) => {
  const scroller = document.querySelector("[data-gallery]");
  const frames = [];
  const start = performance.now();
  let before = start;
  while (before - start < seconds * 1000) {
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - before);
    before = now;
    scroller.scrollTop = end * scroller.scrollHeight * (now - start) / (seconds * 1000);
  }
  frames.sort((a, b) => a - b);
  return { frames: frames.length, over50: frames.filter((frame) => frame > 50).length,
           median: frames[frames.length >> 1], p95: frames[Math.floor(frames.length * 0.95)], worst: frames.at(-1),
           height: scroller.scrollHeight, tiles: document.querySelectorAll("[data-id]").length };
}"""


async def _measure(page: Page, look: PageDriver) -> dict[str, Any]:
    async def poster(route: Any) -> None:
        await route.fulfill(content_type="image/svg+xml", body=_POSTER)

    await page.route("**/files/**", poster)
    await page.goto((await look.call("POST", "/api/desk/links"))["url"])
    await page.goto("/gallery")
    await page.locator("[data-id] img").first.wait_for()
    shown = await page.evaluate("performance.now()")
    calm = await page.evaluate(_SCROLL, [SECONDS, 0.02])
    through = await page.evaluate(_SCROLL, [SECONDS, 1])
    return {"first tiles after ms": round(shown), "at a reading pace": calm, "through all of it": through}


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with make_desk(Path(folder), shutdown_seconds=0).open() as (_worker, ready), open_chromium() as browser:
            page = await browser.new_page(viewport={"width": 1440, "height": 900}, base_url=ready.url)
            async with PageDriver.at(page, ready.url) as look:
                [job_id] = await look.submit("the first")
                async with look.http.stream("GET", f"/api/ai-jobs/{job_id}/events", timeout=None) as events:
                    async for _line in events.aiter_lines():
                        pass
                for path in Path(folder).glob("*.db"):
                    _fill(path)
                for name, found in (await _measure(page, look)).items():
                    print(name, found)


def _fill(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        known = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        if {"outputs", "files", "ai_jobs"} <= known:
            for statement in _FILL:
                connection.execute(statement)
            connection.commit()


if __name__ == "__main__":
    asyncio.run(main())
