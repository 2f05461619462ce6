// Plays every scene of fencepost-lab playground in Chromium, as a visitor does, and looks for what must
// never be there: an error in the console, a request to another address, a number that was written
// twice. With --shots it takes the pictures of docs/playground.md.
//
//   node page.js --program bin/fencepost-lab [--shots DIRECTORY] [--only SCENE]
"use strict";

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const http = require("node:http");
const path = require("node:path");
const { chromium } = require("playwright-core");

const options = {};
for (let i = 2; i < process.argv.length; i += 2) options[process.argv[i].replace(/^--/, "")] = process.argv[i + 1];

// Everything on the page happens within some seconds. The limit allows for other load.
const patience = 90_000;

// start runs the program, and returns it with the address of its page.
function start() {
  const child = spawn(options.program || "bin/fencepost-lab", ["playground", "--listen", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((resolve) => child.on("exit", (code) => resolve(code)));
  return new Promise((resolve, reject) => {
    let text = "";
    child.stdout.on("data", (data) => {
      text += data;
      const found = /http:\/\/[^/]+\//.exec(text);
      if (found) resolve({ child, ended, url: found[0] });
    });
    ended.then((code) => reject(new Error("the program has ended with code " + code)));
  });
}

// Visitor is a page with what happened on it.
class Visitor {
  constructor(page, url) {
    this.page = page;
    this.url = url;
    this.bad = [];
    page.setDefaultTimeout(patience);
    page.on("console", (m) => { if (m.type() === "error") this.bad.push("console: " + m.text()); });
    page.on("pageerror", (e) => this.bad.push("script: " + e.message));
    page.on("request", (r) => { if (!r.url().startsWith(url)) this.bad.push("request to " + r.url()); });
  }

  async enter(scene, algorithm) {
    const which = `#scenes [data-scene="${scene}"]` + (algorithm ? `[data-algorithm="${algorithm}"]` : "");
    await this.page.click(which);
    await this.page.waitForSelector(which + "[aria-current]");
    await this.until("the workers of the scene", (s) => s.workers.length > 0 && s.scene === scene);
  }

  state() { return this.page.evaluate(async () => (await fetch("/state")).json()); }

  // until waits for the state of the playground.
  async until(what, wanted) {
    const end = Date.now() + patience;
    for (;;) {
      const s = await this.state();
      assert.equal(s.problem, undefined, "a problem is shown");
      if (wanted(s)) return s;
      if (Date.now() > end) throw new Error("waited for " + what + ": " + JSON.stringify(s, null, 1));
      await this.page.waitForTimeout(100);
    }
  }

  // step waits until the visitor is asked to press a button, and presses it.
  async step(name) {
    await this.page.locator("#steps").getByRole("button", { name, exact: true }).click();
  }

  // finish waits until the last step of the scene is reached, and shows itself to be done.
  async finish() {
    const s = await this.until("the last step", (now) => now.steps.every((step) => step.state === "done"));
    await this.page.waitForFunction(() => document.querySelectorAll("#steps li:not(.done)").length === 0);
    assert.equal(s.totals.twice, 0, "numbers were written twice");
    assert.equal(await this.text("#twice"), "0");
    checkLedger(s);
    return s;
  }

  text(selector) { return this.page.textContent(selector); }

  async shot(name, height) {
    if (!options.shots) return;
    const size = this.page.viewportSize();
    await this.page.setViewportSize({ width: size.width, height });
    await this.page.evaluate(() => window.scrollTo(0, 0));
    await this.page.waitForTimeout(300); // the timeline is drawn anew
    await this.page.screenshot({ path: path.join(options.shots, name), scale: "css" });
    await this.page.setViewportSize(size);
  }
}

// checkLedger checks that the terms follow each other, and that each row is within the term of its worker.
function checkLedger(s) {
  s.ledger.forEach((grant, i) => {
    if (i > 0) assert.ok(grant.epoch < s.ledger[i - 1].epoch && grant.at <= s.ledger[i - 1].at, "the ledger is out of order");
  });
  for (const note of s.notes) {
    const term = s.ledger.find((grant) => grant.epoch === note.epoch);
    if (term) assert.equal(note.worker, term.worker, `row ${note.n} was written under the epoch of another worker`);
  }
}

const scenes = {
  async lease(v) {
    await v.step("Start the workers");
    await v.finish();
    assert.match(await v.text("#lease"), /^worker-[abc]:\w+, [\d.]+ s left, renewed [3-9]\d* times|^worker-[abc]:\w+, [\d.]+ s left, renewed \d\d+ times/);
    assert.equal(await v.text("#epoch"), "1");
    assert.equal(await v.page.locator(".worker.writes").count(), 1);
    assert.equal(await v.page.locator(".worker.wrong").count(), 0);
    assert.ok(await v.page.locator("#timeline circle").count() >= 3, "the timeline shows the rows");
  },

  async crash(v) {
    await v.step("Start the workers");
    await v.step("Kill the leader");
    await v.page.locator(".worker .tag", { hasText: "stopped" }).waitFor();
    await v.step("Start it again");
    const s = await v.finish();
    assert.equal(s.totals.grants, 2);
    assert.equal(await v.text("#epoch"), "2");
  },

  async pause(v) {
    await v.step("Start the workers");
    await v.step("Freeze the leader while it writes");
    await v.page.locator(".worker.wrong", { hasText: "frozen" }).waitFor(); // it believes, and may not
    await v.step("Thaw it");
    const s = await v.finish();
    const refused = s.audit.find((a) => a.sqlstate === "ZF001");
    assert.ok(refused, "the audit log has a line: " + JSON.stringify(s.audit));
    assert.equal(refused.current_epoch, refused.epoch + 1);
    await v.page.locator("#audit li", { hasText: refused.current_worker }).first().waitFor();
    await v.page.locator("#lines li", { hasText: "is refused at its INSERT: FATAL ZF001" }).first().waitFor();
    if (options.shots) {
      await v.until("more rows", (now) => now.totals.written >= s.totals.written + 5);
      await v.shot("playground-pause.png", 960);
    }
  },

  // leaders plays both algorithms.
  async leaders(v, algorithm) {
    await v.step("Start the nodes");
    await v.step("Partition the network");
    const both = await v.until("both leaders, one of them refused", (s) => s.workers.filter((w) => w.leads).length === 2 && s.audit.length > 0);
    assert.deepEqual(both.workers.filter((w) => w.leads).map((w) => w.name), ["node-2", "node-5"]);
    const refused = both.audit[both.audit.length - 1];
    assert.equal(refused.sqlstate, "ZF001");
    assert.match(refused.worker, /^node-5:/);
    assert.match(refused.current_worker, /^node-2:/);
    await v.page.locator("#steps").getByRole("button", { name: "Heal the network" }).waitFor();
    await v.page.locator(".worker.writes").waitFor();
    await v.page.locator(".worker.wrong", { hasText: "believes it leads, may not write" }).waitFor();
    await v.page.locator('.worker[data-worker="node-5"]').getByText("I am elected: I lead").waitFor();
    await v.page.locator('.worker[data-worker="node-2"]').getByText("I am elected: I lead").waitFor();
    if (options.shots && algorithm === "bully") {
      await v.until("the leaders to take turns", (s) => s.lease.epoch >= 4 && s.audit[0].at > s.ledger[0].at);
      await v.shot("playground-leaders.png", 1130);
    }
    await v.step("Heal the network");
    const s = await v.finish();
    assert.deepEqual(s.workers.filter((w) => w.leads).map((w) => w.name), ["node-5"]);
  },

  // free uses the buttons of the workers, with the keyboard, on a phone.
  async free(v) {
    await v.page.setViewportSize({ width: 390, height: 844 });
    const led = await v.until("a leader that writes", (s) => s.lease.leader !== "" && s.totals.written > 0);
    const name = led.lease.leader.split(":")[0];
    const act = async (label) => {
      const button = v.page.getByRole("button", { name: `${label} ${name}`, exact: true });
      await button.focus();
      await v.page.keyboard.press("Enter");
    };
    await act("Cut off");
    await v.until("another leader that writes", (s) => s.lease.epoch > led.lease.epoch && s.notes.some((n) => n.epoch === s.lease.epoch));
    await act("Reconnect");
    const after = await v.until("the write that comes late to be refused", (s) => s.workers.find((w) => w.name === name).refused > 0);
    assert.equal(after.totals.twice, 0);
    checkLedger(after);
    await act("Freeze");
    await v.page.locator(`.worker[data-worker="${name}"] .tag`, { hasText: "frozen" }).waitFor();
    assert.equal(await v.page.evaluate(() => document.activeElement.closest(".worker") !== null || document.activeElement.id === "scene"), true, "the focus is lost");
    await act("Thaw");
    const width = await v.page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
    assert.ok(width[0] <= width[1], `the page is ${width[0]} wide on a phone of ${width[1]}`);
    const small = await v.page.evaluate(() => [...document.querySelectorAll("button")].filter((b) => b.offsetParent && b.getBoundingClientRect().height < 32).map((b) => b.textContent));
    assert.deepEqual(small, [], "buttons that are too small for a finger");
    await v.shot("playground-phone.png", 844);
    await v.page.setViewportSize({ width: 1100, height: 900 });
  },
};

// otherSites lets a page of another origin try to follow and to change the playground.
async function otherSites(browser, url, v) {
  const before = await v.state();
  const server = http.createServer((_, answer) => answer.setHeader("Content-Type", "text/html").end("<!doctype html><title>another site</title>"));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const page = await browser.newPage();
  try {
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    const got = await page.evaluate(async (target) => {
      const results = {};
      const attempt = async (name, f) => { try { results[name] = await f(); } catch (e) { results[name] = e.name; } };
      await attempt("read", async () => (await fetch(target + "state")).status);
      await attempt("json", async () => (await fetch(target + "enter", { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"scene":"crash"}' })).status);
      await attempt("plain", async () => (await fetch(target + "enter", { method: "POST", mode: "no-cors", body: '{"scene":"crash"}' })).type);
      await attempt("events", () => new Promise((resolve) => {
        const events = new EventSource(target + "events");
        events.onmessage = () => resolve("message");
        events.onerror = () => { events.close(); resolve("error"); };
      }));
      await attempt("frame", () => new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.onload = () => { try { resolve(frame.contentDocument === null ? "unreadable" : "readable"); } catch { resolve("unreadable"); } };
        frame.src = target;
        document.body.append(frame);
      }));
      return results;
    }, url);
    assert.equal(got.read, "TypeError");
    assert.equal(got.json, "TypeError");
    assert.equal(got.plain, "TypeError"); // it was sent, but refused, as the scene shows
    assert.equal(got.events, "error");
    assert.equal(got.frame, "unreadable");
  } finally {
    await page.close();
    server.close();
  }
  assert.equal((await v.state()).scene, before.scene, "another site has begun a scene");
}

async function main() {
  const program = await start();
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
  let failed = 0;
  const play = async (name, f) => {
    if (options.only && !name.startsWith(options.only)) return;
    const began = Date.now();
    try {
      await f();
      console.log(`ok   ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
    } catch (e) {
      failed++;
      console.log(`FAIL ${name}: ${e.stack}`);
    }
  };
  try {
    const v = new Visitor(await browser.newPage({ viewport: { width: 1100, height: 900 }, reducedMotion: "reduce" }), program.url);
    await v.page.goto(program.url);
    for (const [name, scene, algorithm] of [["lease", "lease"], ["crash", "crash"], ["pause", "pause"], ["leaders, bully", "leaders", "bully"], ["leaders, ring", "leaders", "ring"], ["free", "free"]]) {
      await play(name, async () => {
        await v.enter(scene, algorithm);
        await scenes[scene](v, algorithm);
      });
    }
    await play("other sites", () => otherSites(browser, program.url, v));
    await play("nothing bad on the page", async () => assert.deepEqual(v.bad, []));
  } finally {
    await browser.close();
    program.child.kill("SIGINT");
  }
  const code = await program.ended;
  if (code !== 0) {
    failed++;
    console.log("FAIL the program has ended with code " + code);
  }
  process.exit(failed > 0 ? 1 : 0);
}

main().catch((e) => { console.error(e); process.exit(1); });
