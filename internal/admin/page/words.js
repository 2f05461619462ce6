"use strict";

// How the page words what it shows: times, names, commands, tables.
const words = (() => {
  const { el, plain } = page;
  const pad = (n) => String(n).padStart(2, "0");

  // duration words seconds, coarsely.
  function duration(s) {
    if (s < 10) return Math.max(0, s).toFixed(1) + " s";
    if (s < 120) return Math.floor(s) + " s";
    if (s < 7200) return Math.floor(s / 60) + " min";
    return s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " days";
  }

  // limit words a configured number of seconds, and null, which is none.
  const limit = (s) => s === null ? "unlimited" : "of " + (Number.isInteger(s) && s < 120 ? s + " s" : duration(s));

  // stamp words a time in this browser's time zone.
  function stamp(at) {
    const d = new Date(at);
    return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  }

  const bytes = (n) => n < 1e4 ? n + " B" : n < 1e7 ? Math.round(n / 1e3) + " kB" : n < 1e10 ? Math.round(n / 1e6) + " MB" : Math.round(n / 1e9) + " GB";

  // short cuts a text of any length. What is cut is in the title.
  function short(text, most = 80) {
    const chars = Array.from(text);
    return chars.length <= most ? el("span", {}, text) : el("span", { title: plain(text) }, chars.slice(0, most).join("") + " …");
  }

  // quote makes a text one word of a shell, which no terminal takes for keys: what is no letter, digit or mark is escaped.
  function quote(text) {
    if (/^[\w.,:@%+/-]+$/.test(text)) return text;
    const shown = plain(text);
    if (shown === text) return "'" + text.replaceAll("'", "'\\''") + "'";
    const hex = (c) => Array.from(new TextEncoder().encode(c), (b) => "\\x" + b.toString(16).padStart(2, "0")).join("");
    return "$'" + Array.from(text, (c) => c === "'" || c === "\\" ? "\\" + c : plain(c) === c ? c : hex(c)).join("") + "'";
  }

  // command words a command for a resource. A name that begins with a dash is no flag.
  function command(verb, view, ...flags) {
    const dashed = view.resource.startsWith("-") ? ["--"] : [];
    return ["fencepost", verb, ...dashed, quote(view.resource), ...flags.map(quote), "--database", quote(view.database)].join(" ");
  }

  // table shows rows, which are lists of texts or elements, in an element, if they have changed. Screen readers know it as a
  // table also where it is drawn as cards.
  function table(into, label, columns, rows, none) {
    const text = JSON.stringify(rows.map((r) => r.map((c) => c instanceof Node ? c.textContent + (c.title || "") : c)));
    if (into.shown === text) return;
    into.shown = text;
    if (rows.length === 0) {
      into.replaceChildren(el("p", { class: "faint" }, none));
      return;
    }
    const head = el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...columns.map((c) => el("th", { scope: "col", role: "columnheader" }, c))));
    const body = el("tbody", { role: "rowgroup" }, ...rows.map((r) => el("tr", { role: "row" }, ...r.map((c, i) => el("td", { role: "cell", "data-label": columns[i] }, c)))));
    into.replaceChildren(el("table", { role: "table", class: "cards", "aria-label": label }, head, body));
  }

  // facts shows pairs of a name and a text. Those without a text are left out.
  function facts(into, pairs) {
    const all = pairs.filter(([, text]) => text);
    const text = JSON.stringify(all);
    if (into.shown === text) return;
    into.shown = text;
    into.replaceChildren(...all.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  return { duration, limit, stamp, bytes, short, quote, command, table, facts };
})();

// A Source asks the proxy for one thing again and again, and says how old the answer is.
class Source {
  constructor(ageId, partIds, show) {
    Object.assign(this, { age: document.getElementById(ageId), parts: partIds.map((id) => document.getElementById(id)), show });
    this.forget();
  }

  // forget drops the answer, when something else is asked for.
  forget() { Object.assign(this, { at: 0, asked: 0, url: "", error: "", body: null, busy: false }); }

  // ask asks, unless the answer to the same question is younger than some seconds.
  async ask(url, seconds) {
    if (url !== this.url) { this.forget(); this.url = url; }
    if (this.busy || Date.now() - this.asked < seconds * 1000) { this.tell(); return; }
    Object.assign(this, { busy: true, asked: Date.now() });
    let body = null, error = "";
    try {
      const answer = await fetch(url, { signal: AbortSignal.timeout(10_000) });
      body = await answer.json();
      if (!answer.ok) { error = body.error || answer.statusText; body = null; }
    } catch {
      error = "the proxy does not answer";
    }
    if (url !== this.url) return; // something else was asked for since
    this.busy = false;
    this.error = error;
    if (body) { this.body = body; this.at = Date.now(); this.show(body); }
    this.tell();
  }

  // tell says how old the answer is, and greys what is old.
  tell() {
    const old = this.error !== "" || this.at > 0 && Date.now() - this.at > 30_000;
    const asOf = this.at ? "as of " + words.stamp(this.at) : "not known yet";
    this.age.textContent = page.plain(this.error ? `${this.error}. What is shown is old: ${asOf}` : asOf);
    this.age.classList.toggle("bad-text", this.error !== "");
    for (const p of this.parts) p.classList.toggle("old", old);
  }
}
