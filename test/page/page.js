// Looks at the page for operators in Chromium, on a small desktop and on a phone, while the test that has started this
// breaks the system behind it. With SHOTS it takes the pictures of docs/page.md.
//
//   node page.js faults|many URL NAMES
"use strict";

const assert = require("node:assert/strict");
const path = require("node:path");
const readline = require("node:readline");
const { chromium } = require("playwright-core");

const [scene, url, given] = process.argv.slice(2);
const patience = 60_000;
const desktop = { width: 1100, height: 800 }, phone = { width: 390, height: 844 };

// ask has the test do something, and returns what it says.
const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function ask(what, ...args) {
  console.log(JSON.stringify({ do: what, args }));
  const { value, error } = JSON.parse((await answers.next()).value);
  if (error) throw new Error(`${what} ${args}: ${error}`);
  return value;
}

// visitor opens a page, and notes what must never happen on it.
async function visitor(browser, size, options = {}) {
  const page = await browser.newPage({ viewport: size, reducedMotion: "reduce", ...options });
  page.setDefaultTimeout(patience);
  page.bad = [];
  page.lost = false; // whether requests may fail
  page.on("console", (m) => { if (m.type() === "error" && !(page.lost && m.text().includes("Failed to load resource"))) page.bad.push("console: " + m.text()); });
  page.on("pageerror", (e) => page.bad.push("script: " + e.message));
  page.on("dialog", (d) => { page.bad.push("dialog: " + d.message()); d.dismiss(); });
  page.on("request", (r) => { if (!r.url().startsWith(page.allowed || url)) page.bad.push("request to " + r.url()); });
  return page;
}

async function shot(page, name, height) {
  if (!process.env.SHOTS) return;
  const size = page.viewportSize();
  await page.setViewportSize({ width: size.width, height });
  await page.evaluate(() => window.scrollTo(0, 0));
  await page.waitForTimeout(1200); // the timeline is drawn anew
  await page.screenshot({ path: path.join(process.env.SHOTS, name), scale: "css" });
  await page.setViewportSize(size);
}

// row is the row of a resource in the table.
const row = (page, name) => page.getByRole("row").filter({ has: page.getByRole("link", { name, exact: true }) });
const stateOf = (page, name) => row(page, name).locator(".tag");
const until = (page, what, f, arg) => page.waitForFunction(f, arg, { timeout: patience }).catch((e) => { throw new Error(`waited for ${what}: ${e.message}`); });
const state = (page, name, wanted) => stateOf(page, name).filter({ hasText: wanted }).waitFor();

// fits checks that a page is no wider than the screen, and that a finger meets what it aims at.
async function fits(page, what) {
  const width = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  assert.ok(width[0] <= width[1], `${what} is ${width[0]} wide on a screen of ${width[1]}`);
  const small = await page.evaluate(() => [...document.querySelectorAll("button, nav a, input, select")].filter((b) => b.offsetParent && b.getBoundingClientRect().height < 32).map((b) => b.textContent || b.id));
  assert.deepEqual(small, [], `${what}: too small for a finger`);
}

// readable checks the contrast of every text that is shown with what is behind it.
async function readable(page, what) {
  const bad = await page.evaluate(() => {
    const rgb = (c) => (c.match(/[\d.]+/g) || []).map(Number);
    const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
    const found = new Set();
    for (const e of document.querySelectorAll("body *")) {
      const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
      if (!text || !e.offsetParent || e.closest(".old, svg, .unseen, .skip")) continue;
      const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
      if ((a + 0.05) / (b + 0.05) < 4.5) found.add(`${e.tagName}.${e.className}: ${((a + 0.05) / (b + 0.05)).toFixed(1)}`);
    }
    return [...found];
  });
  assert.deepEqual(bad, [], `${what}: too little contrast`);
}

// named checks that what a keyboard reaches has a name, and that the tables are tables for a screen reader.
async function named(page, what) {
  const bad = await page.evaluate(() => [...document.querySelectorAll("a, button, input, select, [tabindex='0'], table, svg[role]")].filter((e) => e.offsetParent || e.tagName === "svg" && e.clientWidth)
    .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.labels && e.labels.length)).map((e) => e.outerHTML.slice(0, 80)));
  assert.deepEqual(bad, [], `${what}: without a name`);
}

async function look(page, what) {
  await fits(page, what);
  await readable(page, what);
  await named(page, what);
}

const checks = [];
const check = (name, f) => checks.push([name, f]);

const names = given ? JSON.parse(given) : {};
const open = (page, hash) => page.evaluate((h) => { location.hash = h; }, hash);
const address = (database, resource) => `/resource/${encodeURIComponent(database)}/${encodeURIComponent(resource)}`;

if (scene === "faults") {
  check("what is led is shown, by its link too", async ({ big, small }) => {
    for (const page of [big, small]) {
      await state(page, "billing", "led");
      await until(page, "the leader's proxy", () => document.getElementById("resources").textContent.includes("fence-1"));
      await look(page, "the resources");
    }
    assert.match(await row(big, "billing").innerText(), /worker-a[\s\S]*active[\s\S]*of 2 s/);
    await big.getByRole("searchbox", { name: "Search" }).first().fill("WORKER-a led");
    await until(big, "one row", () => document.querySelectorAll("#resources tr").length === 1);
    await big.locator("#search").fill("");
    await big.getByRole("link", { name: "billing", exact: true }).focus();
    await big.keyboard.press("Enter");
    await big.getByRole("heading", { name: `billing in database ${names.db}` }).waitFor();
    assert.equal(await big.evaluate(() => document.activeElement.id), "main", "the focus is on the new view");
    await big.locator("#events li", { hasText: "was granted the epoch" }).first().waitFor();
    await big.locator("#facts", { hasText: "fence-1" }).waitFor();
    await look(big, "a resource");
  });

  check("a frozen leader", async ({ big, small }) => {
    await ask("freeze", "worker-a");
    await until(small, "its silence", () => /2\.\d sof 2 s/.test(document.getElementById("resources").textContent) || document.getElementById("resources").textContent.includes("fence-2"));
    await big.locator("#facts", { hasText: "worker-b" }).waitFor();
    await big.locator("#events li", { hasText: "worker-b" }).first().waitFor();
    await big.locator("#events li", { hasText: "released for silence" }).first().waitFor();
    await ask("thaw", "worker-a");
    await big.locator("#events li .who.bad").first().waitFor();
    await big.locator("#timeline .refused").first().waitFor({ state: "attached" });
    assert.ok(await big.locator("#timeline .silence").count() >= 1);
    for (const span of ["60", "7776000"]) {
      await big.getByLabel("Show").selectOption(span);
      await until(big, "the address to say so", (s) => location.hash.includes("span=" + s), span);
      await big.locator("#events li", { hasText: "worker-b" }).first().waitFor();
    }
    await big.getByLabel("Show").selectOption("600");
    await big.getByRole("button", { name: "Earlier" }).click();
    await until(big, "an earlier time", () => location.hash.includes("until="));
    await big.getByRole("button", { name: "Now" }).click();
    await until(big, "the present", () => !location.hash.includes("until="));
    await big.locator("#timeline .refused").first().waitFor({ state: "attached" });
    await shot(big, "page-resource.png", 1290);
    await open(big, "/refusals");
    const refused = big.getByRole("row").filter({ hasText: "worker-a" }).filter({ hasText: "stale write" });
    await refused.waitFor();
    const text = await refused.innerText();
    assert.match(text, /INSERT INTO work VALUES \(\$1, \$2\)/);
    assert.match(text, /worker-b/);
    assert.doesNotMatch(await big.innerText("body"), /secret/);
    await look(big, "the refusals");
  });

  check("a pause, by the command of the page", async ({ big }) => {
    await open(big, address(names.db, "reports"));
    const code = big.locator("#commands code").filter({ hasText: "pause" });
    await code.waitFor();
    assert.equal(await code.innerText(), `fencepost pause reports --database ${names.db}`);
    await big.getByRole("button", { name: "Copy: fencepost pause" }).click();
    await big.locator("#copied", { hasText: "copied" }).waitFor({ state: "attached" });
    await ask("shell", await code.innerText());
    await big.locator("#facts", { hasText: "paused" }).waitFor();
    await big.locator("#blockers li", { hasText: "order: paused by order of" }).waitFor();
    await big.locator("#events li", { hasText: "order: pause" }).waitFor();
    await big.locator("#commands code").filter({ hasText: "fencepost resume reports" }).waitFor();
  });

  check("a blocked grant", async ({ big, small }) => {
    await open(big, "/");
    await ask("block", "stock");
    await state(big, "stock", "blocked");
    assert.equal(await big.locator("#resources tr").first().locator("a").innerText(), "stock", "trouble is on top");
    assert.match(await row(big, "stock").innerText(), /prepared transaction .stuck. of role/);
    await open(big, address(names.db, "stock"));
    await big.locator("#blockers li", { hasText: /prepared transaction .stuck. of role/ }).waitFor();
    await big.locator("#blockers li", { hasText: /blocked for [\d.]+ s/ }).waitFor();
    await open(big, "/");
    await shot(big, "page-resources.png", 620);
    await shot(small, "page-phone.png", 844);
    await ask("unblock");
    await state(big, "stock", "led");
  });

  check("hostile names are texts, and words of a shell", async ({ big, small }) => {
    await ask("hostile");
    await open(big, "/");
    const name = names.resource;
    await state(big, name, "led");
    assert.match(await row(big, name).innerText(), /<b>O'Reilly<\/b>/);
    assert.match(await row(big, name).innerText(), /<\/td><script>.*\\u\{202e\}\\u\{2066\}\$\(touch PWNED\)/);
    await row(big, name).getByRole("link").click();
    await big.locator("#resource-connections", { hasText: "<svg onload=" }).waitFor();
    await big.locator("#events li", { hasText: "</td><script>" }).first().waitFor();
    for (const verb of ["pause", "resume", "evict"]) {
      const code = big.locator("#commands code").filter({ hasText: "fencepost " + verb });
      await code.waitFor();
      const out = await ask("shell", await code.innerText());
      assert.ok(!/unexpected|no such|usage/i.test(out), out);
      if (verb === "resume") await big.locator("#facts").filter({ hasText: "led " }).waitFor();
    }
    await big.locator("#events li", { hasText: "order: evict" }).waitFor();
    const nasty = ["", "'", "\\", "a'b\\'c", "$(touch PWNED)", "\n touch PWNED\n", "\u0003\u001b[2J\r", "\u007f1f", "\u202e'\\a", "~", "=ls", "*", "é ü", "-x", "!!", "\u00a0", "😀'\t0"];
    const quoted = await big.evaluate((all) => all.map((text) => words.quote(text)), nasty);
    for (const q of quoted) assert.doesNotMatch(q, /[\p{Cc}\p{Cf}]/u, "keys for a terminal");
    assert.equal(await ask("shell", `printf '%s|' ${quoted.join(" ")}`), nasty.join("|") + "|");
    for (const view of ["/connections", "/refusals", "/proxies"]) {
      for (const page of [big, small]) {
        await open(page, view);
        await until(page, view, (id) => document.querySelector(id + " table"), "#view-" + view.slice(1));
        await look(page, view);
      }
    }
    await open(small, address(names.database, name));
    await small.locator("#events li").first().waitFor();
    await look(small, "a resource with a hostile name");
    await open(small, "/");
    assert.equal(await big.evaluate(() => document.title.includes("PWNED")), false);
    assert.equal(await big.locator("main img, main script, main iframe").count(), 0);
    await open(big, "/connections");
    await big.locator("#match").fill("worker-a");
    await until(big, "one connection", () => document.querySelectorAll("#connections tbody tr").length === 1);
  });

  check("a killed proxy", async ({ big }) => {
    await open(big, "/");
    await state(big, "mail", "led");
    await ask("kill-proxy", "fence-2");
    await until(big, "mail to be led no more", () => [...document.querySelectorAll("#resources tr")].some((r) => r.textContent.includes("mail") && !r.querySelector(".tag").textContent.includes("led")));
    await state(big, "billing", "led"); // worker-a has it again
    await open(big, "/proxies");
    await big.getByRole("row").filter({ hasText: "fence-2" }).first().filter({ hasText: "gone" }).waitFor();
    await big.getByRole("row").filter({ hasText: "fence-1" }).first().filter({ hasText: "now" }).waitFor();
  });

  check("a lost database", async ({ big, small }) => {
    big.lost = small.lost = true;
    await open(big, address(names.db, "billing"));
    await big.locator("#events li").first().waitFor();
    await ask("stop-postgres");
    for (const page of [big, small]) await page.getByRole("alert").filter({ hasText: "Postgres cannot be used" }).waitFor();
    await big.locator("#facts", { hasText: "unknown" }).waitFor();
    await big.locator("#history-problem").waitFor();
    await big.locator("#history.old").waitFor();
    await big.locator("#history-age", { hasText: "What is shown is old: as of" }).waitFor();
    await state(small, "billing", "unknown");
    assert.equal(await small.locator("#resources tr", { has: small.locator(".tag.good") }).count(), 0, "nothing is led while Postgres is down");
    await ask("start-postgres");
    await state(small, "billing", "led");
    await big.locator("#history:not(.old)").waitFor();
    await until(big, "the alert to go", () => !document.getElementById("trouble").textContent.includes("cannot be used"));
  });

  check("a lost proxy", async ({ big, small, dark }) => {
    await look(dark, "the resources in the dark");
    dark.lost = true;
    await ask("kill-proxy", "fence-1");
    for (const page of [big, small, dark]) {
      await page.getByRole("alert").filter({ hasText: "What is shown below is old" }).waitFor();
      assert.match(await page.innerText("#age"), /^as of .* ago$/);
      assert.equal(await page.evaluate(() => Number(getComputedStyle(document.querySelector("main")).opacity) < 1), true, "what is old is grey");
    }
    await shot(dark, "page-lost.png", 620);
  });
}

// rowsAt notes when the first rows are there.
const rowsAt = () => new MutationObserver((_, o) => {
  if (document.querySelectorAll("#resources tr").length < 100) return;
  o.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.rowsAt = performance.now(); }));
}).observe(document, { childList: true, subtree: true });

// looks is how often a page is opened whose time is printed. Nothing depends on the time, which is that of the machine.
const looks = 3;

async function used(page, cdp) {
  await page.waitForTimeout(300);
  for (let i = 0; i < 3; i++) await cdp.send("HeapProfiler.collectGarbage");
  const all = Object.fromEntries((await cdp.send("Performance.getMetrics")).metrics.map((m) => [m.name, m.value]));
  return { heap: all.JSHeapUsedSize, nodes: all.Nodes, listeners: all.JSEventListeners };
}

if (scene === "many") {
  check("1,000 resources are there", async ({ browser }) => {
    const times = [];
    while (times.length < looks) {
      const page = await visitor(browser, desktop);
      await page.addInitScript(rowsAt);
      await page.goto(url);
      times.push(await (await page.waitForFunction(() => window.rowsAt)).jsonValue());
      assert.deepEqual(page.bad, []);
      await page.close();
    }
    console.log("the rows of 1,000 resources are painted after " + times.map((t) => Math.round(t) + " ms").join(", "));
  });

  check("10,000 terms are there", async ({ browser }) => {
    const times = [];
    while (times.length < looks) {
      const page = await visitor(browser, phone);
      await page.goto(url + "#/resource/shop/resource-0001?span=7776000");
      await page.locator("#events li").first().waitFor();
      times.push(await page.evaluate(() => performance.now()));
      assert.ok(await page.locator("#timeline .many").count() > 0);
      assert.ok(await page.locator("#timeline *").count() < 3000);
      await fits(page, "10,000 terms");
      assert.deepEqual(page.bad, []);
      await page.close();
    }
    console.log("10,000 terms are painted after " + times.map((t) => Math.round(t) + " ms").join(", "));
  });

  check("an hour of events leaves the memory flat", async ({ browser }) => {
    const big = await visitor(browser, desktop);
    big.allowed = names.driven;
    await big.goto(names.driven);
    const cdp = await big.context().newCDPSession(big);
    await cdp.send("Performance.enable");
    await big.locator("#more").click();
    await until(big, "all rows", () => document.querySelectorAll("#resources tr").length === 1000);
    await big.evaluate(() => { window.long = []; new PerformanceObserver((l) => window.long.push(...l.getEntries().map((e) => e.duration))).observe({ type: "longtask" }); });
    const touched = await big.evaluate(() => { // rows that are left alone stay the same elements
      window.rowOf1 = document.querySelector('a[href="#/resource/shop/resource-0999"]').closest("tr");
      return window.rowOf1.isConnected;
    });
    assert.ok(touched);
    const drive = async (n, all) => { await ask("drive", String(n)); await until(big, "the last event", (name) => document.getElementById("proxy").textContent === name, `after ${all} events`); };
    await drive(600, 600);
    const before = await used(big, cdp);
    const began = Date.now();
    await drive(3000, 3600);
    const after = await used(big, cdp);
    assert.equal(await big.evaluate(() => window.rowOf1 === document.querySelector('a[href="#/resource/shop/resource-0999"]').closest("tr")), true, "a row was made anew");
    const longest = await big.evaluate(() => window.long.sort((a, b) => a - b)[Math.floor(window.long.length / 2)] || 0);
    console.log(`3,000 events in ${Date.now() - began} ms: heap ${Math.round(before.heap / 1e3)} kB, then ${Math.round(after.heap / 1e3)} kB; ${before.nodes} nodes, then ${after.nodes}; ${await big.evaluate(() => window.long.length)} tasks of more than 50 ms, half of them more than ${Math.round(longest)} ms`);
    assert.ok(after.heap < before.heap * 1.1 + 5e5, "the heap has grown");
    assert.ok(after.nodes < before.nodes * 1.1, "the nodes have grown");
    assert.ok(after.listeners <= before.listeners + 5, "the listeners have grown");
    assert.deepEqual(big.bad, []);
  });
}

async function main() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
  let failed = 0;
  try {
    const pages = { browser, big: await visitor(browser, desktop, { permissions: ["clipboard-read", "clipboard-write"] }) };
    if (scene === "faults") {
      pages.small = await visitor(browser, phone);
      pages.dark = await visitor(browser, desktop, { colorScheme: "dark" });
    }
    for (const p of Object.values(pages).slice(1)) await p.goto(url);
    for (const [name, f] of checks) {
      const began = Date.now();
      try {
        await f(pages);
        for (const p of Object.values(pages).slice(1)) assert.deepEqual(p.bad, [], "nothing bad on the page");
        console.log(`ok   ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
      } catch (e) {
        failed++;
        console.log(`FAIL ${name}: ${e.stack}`);
        if (process.env.FAILURES) await pages.big.screenshot({ path: path.join(process.env.FAILURES, name.replace(/\W+/g, "-") + ".png"), fullPage: true });
        break; // what follows rests on it
      }
    }
  } finally {
    await browser.close();
  }
  process.exit(failed > 0 ? 1 : 0);
}

main().catch((e) => { console.error(e); process.exit(1); });
