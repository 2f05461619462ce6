// The driver postgres: node postgresjs.js scenarios|follower|stale|stale_transaction
'use strict';

const { Readable } = require('stream');
const { pipeline: flow } = require('stream/promises');
const postgres = require('postgres');
const c = require('./common.js');

// open opens a pool that holds one connection at a time.
function open(notices = [], more = {}) {
  const options = process.env.PGOPTIONS;
  return postgres({
    max: 1, ssl: false, connection: options ? { options } : {}, onnotice: (n) => notices.push(n.message), connect_timeout: 60, ...more,
  });
}

const detailOf = (e) => e && {
  severity: e.severity, code: e.code, message: e.message, detail: e.detail, hint: e.hint, position: e.position, where: e.where,
  table: e.table_name, constraint: e.constraint_name, routine: e.routine,
};

const first = async (query) => Object.values((await query)[0])[0];

const balanceOf = (sql, id) => first(sql`SELECT balance FROM account WHERE id = ${id}`);

const copyInto = async (sql, text, rows) => flow(Readable.from(rows), await sql.unsafe(text).writable());

const scenarios = {
  async types(sql) {
    const r = await sql`INSERT INTO typed (i4, i8, num, txt, yes, raw, at, doc, list, uid, nothing)
      VALUES (${7}, ${9007199254740993n}, ${'12.50'}, ${c.someText}, ${true}, ${Buffer.from([0, 255, 39])},
        ${new Date('2020-02-03T04:05:06.789Z')}, ${sql.json({ x: [1, null] })}, ${[1, 2, 3]}, ${c.someUUID}, ${null})
      RETURNING i4, i8, num, txt, yes, raw, at, doc, list, uid, nothing`;
    return [c.typedResult(r[0]), { types: r.columns.map((f) => f.type), tag: r.command, count: r.count }];
  },

  async prepared(sql) {
    const balances = [];
    for (let i = 1; i <= 12; i++) {
      balances.push(await first(sql`UPDATE account SET balance = balance + ${i} WHERE id = ${(i % 3) + 1} RETURNING balance`));
    }
    const d = await sql`UPDATE account SET balance = ${1} WHERE id = ${1} RETURNING balance`.describe();
    return [{ balances }, { described: [d.types, d.columns.map((f) => f.type)] }];
  },

  // Its queries are in flight together, each followed by a Sync.
  async batch(sql) {
    const inserts = [];
    for (let i = 0; i < 50; i++) inserts.push(sql`INSERT INTO event (what) VALUES (${String(i)})`.execute());
    const count = first(sql.unsafe(c.countEvents));
    const done = await Promise.all(inserts);
    return [{ affected: done.reduce((sum, r) => sum + r.count, 0), count: await count }];
  },

  batch_error: 'has a Sync behind each query of a pipeline',

  async pipeline(sql) {
    const errors = await Promise.all([
      c.attempt(() => sql`INSERT INTO event (what) VALUES ('a')`), c.attempt(() => sql`SELECT 1/${0}::int`),
      c.attempt(() => sql`INSERT INTO event (what) VALUES ('b')`),
    ]);
    // A transaction whose queries are in flight together.
    const inside = await c.attempt(() => sql.begin((t) => [
      t`INSERT INTO event (what) VALUES ('lost')`, t`SELECT 1/${0}::int`, t`INSERT INTO event (what) VALUES ('lost')`,
    ]));
    return [{ results: errors.map(c.state), rows: await first(sql.unsafe(c.countEvents)) },
      { errors: errors.map(detailOf), inside: detailOf(inside) }];
  },

  async multi(sql) {
    const good = await sql.unsafe(c.twoQueries);
    const [one, balance, last] = good.map((r) => r[0].n);
    const error = await c.attempt(() => sql.unsafe(c.failingQueries));
    const rows = await first(sql.unsafe(c.countEvents));
    return [{ first: one, balance, last, sqlstate: c.state(error), rows }, { tags: good.map((r) => r.command), error: detailOf(error) }];
  },

  async copy_in(sql) {
    await copyInto(sql, 'COPY event (what) FROM STDIN', Array.from({ length: 1000 }, (_, i) => `${i}\n`));
    const copied = await first(sql.unsafe(c.countEvents)); // the driver does not say
    return [{ copied, rows: await first(sql.unsafe(c.countEvents)) }];
  },

  copy_error: 'does not tell that the server refused a COPY at its end',

  async copy_fail(sql) {
    const into = await sql.unsafe('COPY event (what) FROM STDIN').writable();
    const closed = new Promise((resolve) => into.once('close', resolve));
    let error = null;
    into.once('error', (e) => { error = e; });
    into.write('lost\n');
    into.destroy(new Error('no more of it'));
    await closed;
    return [{ rows: await first(sql.unsafe(c.countEvents)), usable: await first(sql`SELECT 1`) }, { error: String(error) }];
  },

  async copy_out(sql) {
    let text = '';
    for await (const chunk of await sql.unsafe('COPY (SELECT * FROM account ORDER BY id) TO STDOUT').readable()) text += chunk;
    const rows = text.trimEnd().split('\n');
    return [{ rows: rows.length, first: rows[0], last: rows[rows.length - 1] }];
  },

  // A portal that is read seven rows at a time. Other queries wait for its end.
  async cursor(sql) {
    const ids = [];
    const sizes = [];
    let updated = 0;
    await sql.begin(async (t) => {
      for await (const rows of t`SELECT id FROM account WHERE id > ${0} ORDER BY id`.cursor(7)) {
        sizes.push(rows.length);
        ids.push(...rows.map((r) => r.id));
      }
      for (const id of ids.filter((n) => n % 10 === 0)) {
        updated += (await t`UPDATE account SET balance = ${id} WHERE id = ${id}`).count;
      }
    });
    return [{ rows: ids.length, sum: ids.reduce((a, b) => a + b), updated }, { sizes }];
  },

  async savepoint(sql) {
    let error;
    await sql.begin(async (t) => {
      await t`UPDATE account SET balance = 1 WHERE id = 1`;
      error = await c.attempt(() => t.savepoint(async (inner) => {
        await inner`UPDATE account SET balance = 2 WHERE id = 2`;
        await inner`SELECT 1/0`;
      }));
      await t.savepoint((inner) => inner`UPDATE account SET balance = 3 WHERE id = 3`);
    });
    const r = await sql`SELECT balance FROM account WHERE id < 4 ORDER BY id`;
    return [{ sqlstate: c.state(error), balances: r.map((row) => row.balance) }, { error: detailOf(error) }];
  },

  async transaction(sql) {
    const levels = [];
    for (const level of ['serializable', 'repeatable read']) {
      await sql.begin(`isolation level ${level}`, async (t) => {
        await t`UPDATE account SET balance = balance + ${1} WHERE id = 1`;
        levels.push(await first(t`SHOW transaction_isolation`));
      });
    }
    const error = await c.attempt(() => sql.begin('read only', (t) => t`UPDATE account SET balance = 0 WHERE id = ${1}`));
    return [{ levels, readonly: c.state(error), balance: await balanceOf(sql, 1) }, { error: detailOf(error) }];
  },

  async error(sql) {
    const unknown = await c.attempt(() => sql`SELECT id, nosuch FROM account`);
    const positioned = await c.attempt(() => sql`SELECT nosuch FROM account WHERE id = ${1}`);
    let twice;
    let aborted;
    const committed = await c.attempt(() => sql.begin(async (t) => {
      await t`INSERT INTO event (what) VALUES ('lost')`;
      twice = await c.attempt(() => t.unsafe(c.duplicate));
      aborted = await c.attempt(() => t`SELECT 1`);
    }));
    return [{
      sqlstate: c.state(unknown), duplicate: c.state(twice), constraint: twice.constraint_name, aborted: c.state(aborted),
      rows: await first(sql.unsafe(c.countEvents)),
    }, { errors: [unknown, positioned, twice, aborted].map(detailOf), committed: detailOf(committed) }];
  },

  async cancel(sql, other) {
    const slow = sql.unsafe(c.slowUpdate);
    const failed = c.attempt(() => slow);
    while (await first(other.unsafe(c.sleeping)) === 0) await c.pause(10);
    slow.cancel();
    const error = await failed;
    return [{ sqlstate: c.state(error), balance: await balanceOf(sql, 1), usable: await first(sql`SELECT 1`) }, { error: detailOf(error) }];
  },

  // It listens on a separate connection.
  async notify(sql, other) {
    const payloads = [];
    let listening;
    await new Promise((resolve, reject) => {
      listening = sql.listen('news', (payload) => payloads.push(payload) === 2 && resolve());
      listening.then(() => other.notify('news', 'one')).then(() => sql.notify('news', 'two')).catch(reject);
    });
    await (await listening).unlisten();
    return [{ payloads }, { own: 'the driver does not say who notified' }];
  },

  async large_object(sql) {
    const result = {};
    const object = await sql.largeObject(); // in a transaction of its own
    await object.write(c.digits);
    result.size = Number((await object.size())[0].size);
    await object.seek(50005);
    result.read = (await first(object.read(5))).toString();
    await object.truncate(10);
    result.truncated = Number((await object.size())[0].size);
    await object.close();
    const gone = await c.attempt(() => sql`SELECT lo_get(4000000000)`);
    return [{ ...result, gone: c.state(gone) }, { error: detailOf(gone) }];
  },

  async alone(sql) {
    const tags = [];
    for (const text of c.alone) tags.push((await sql.unsafe(text)).command);
    const result = { rows: await first(sql.unsafe(c.countEvents)), index: await first(sql.unsafe(c.isIndexed)) };
    tags.push((await sql.unsafe('DROP INDEX CONCURRENTLY account_balance')).command);
    return [result, { tags }];
  },
};

async function runScenarios() {
  const other = open(); // it stays, so that the worker does not leave between two scenarios
  for (const [name, run] of Object.entries(scenarios)) {
    if (typeof run === 'string') {
      c.lacks(name, run);
      continue;
    }
    await c.report(name, async () => {
      await other`SELECT reset_all()`;
      const notices = [];
      const sql = open(notices);
      try {
        const [result, detail] = await run(sql, other);
        return [result, { ...detail, notices }];
      } finally {
        await sql.end();
      }
    });
  }
  await other.end();
}

const write = (sql) => sql`UPDATE account SET balance = ${0} WHERE id = ${1}`;

const pidOf = (sql) => first(sql`SELECT pg_backend_pid()`);

// refusals tries each way to write.
async function refusals(sql) {
  const result = { role: await first(sql`SHOW fencepost.role`), read: await balanceOf(sql, 1) };
  const refused = await c.attempt(() => write(sql));
  result.write = c.state(refused);
  result.severity = refused && refused.severity;
  result.simple = c.state(await c.attempt(() => sql`UPDATE account SET balance = 0`.simple()));
  const flying = await Promise.all([
    c.attempt(() => balanceOf(sql, 1)), c.attempt(() => write(sql)), c.attempt(() => balanceOf(sql, 1)),
  ]);
  result.batch = flying[0] || flying[2] ? 'its reads fail' : c.state(flying[1]);
  result.copy = c.state(await c.attempt(() => copyInto(sql, 'COPY account FROM STDIN', ['1000\t1\n'])));
  result.transaction = c.state(await c.attempt(() => sql.begin(async (t) => {
    await balanceOf(t, 1);
    await write(t);
  })));
  return result;
}

async function follower() {
  const sql = open();
  await c.report('follower', async () => {
    const pid = await pidOf(sql);
    const result = await refusals(sql);
    result.kept = await pidOf(sql) === pid;
    result.again = await balanceOf(sql, 1);
    return [result];
  });
  await sql.end();
}

// When the server closes a connection, the driver fails the current query with an error
// of its own, and reports the server's error for the next query, which runs but is
// reported as failed. So the next queries use another pool.
async function stale(name) {
  let closed;
  const broken = new Promise((resolve) => { closed = resolve; });
  const sql = open([], { onclose: closed });
  const next = open();
  await c.report(name, async () => {
    const on = await sql.reserve();
    await on`UPDATE account SET balance = 101 WHERE id = 1`;
    if (name === 'stale_transaction') await on`BEGIN`;
    await balanceOf(on, 1);
    await c.waitToBeSuperseded();
    const late = await c.attempt(() => write(on));
    if (late === null) await on`COMMIT`; // it was not refused: hold no lock against the rest
    return [{
      sqlstate: c.state(late), severity: (late && late.severity) || null,
      broken: await Promise.race([broken.then(() => true), c.pause(10000).then(() => false)]), role: await first(next`SHOW fencepost.role`), again: c.state(await c.attempt(() => write(next))),
    }];
  });
  await next.end();
  await sql.end({ timeout: 0 });
}

c.main({ scenarios: runScenarios, follower, stale: () => stale('stale'), stale_transaction: () => stale('stale_transaction') });
