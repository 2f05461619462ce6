// The driver pg: node pg.js scenarios|follower|stale|stale_transaction
'use strict';

const { Readable } = require('stream');
const { pipeline: flow } = require('stream/promises');
const pg = require('pg');
const Cursor = require('pg-cursor');
const { from: copyFrom, to: copyTo } = require('pg-copy-streams');
const c = require('./common.js');

const config = { options: process.env.PGOPTIONS, ssl: false };

async function connect(more) {
  const client = new pg.Client({ ...config, ...more });
  // The end of a connection is reported here too, in addition to the failing query.
  client.on('error', () => {});
  await client.connect();
  return client;
}

const number = async (client, text, values) => (await client.query(text, values)).rows[0].n;

const balanceOf = (client, id) => number(client, 'SELECT balance AS n FROM account WHERE id = $1', [id]);

const detailOf = (e) => e && {
  severity: e.severity, code: e.code, message: e.message, detail: e.detail, hint: e.hint, position: e.position, where: e.where,
  table: e.table, constraint: e.constraint, routine: e.routine,
};

const scenarios = {
  async types(client) {
    const r = await client.query(c.insertTyped, [
      7, '9007199254740993', '12.50', c.someText, true, Buffer.from([0, 255, 39]), new Date('2020-02-03T04:05:06.789Z'),
      { x: [1, null] }, [1, 2, 3], c.someUUID, null,
    ]);
    return [c.typedResult(r.rows[0]), { types: r.fields.map((f) => f.dataTypeID), tag: r.command, count: r.rowCount }];
  },

  async prepared(client) {
    const balances = [];
    for (let i = 1; i <= 12; i++) {
      const r = await client.query({
        name: 'add', text: 'UPDATE account SET balance = balance + $1 WHERE id = $2 RETURNING balance', values: [i, (i % 3) + 1],
      });
      balances.push(r.rows[0].balance);
    }
    return [{ balances }];
  },

  async batch() {
    const client = await connect({ pipeline: true });
    try {
      const inserts = [];
      for (let i = 0; i < 50; i++) {
        inserts.push(client.query('INSERT INTO event (what) VALUES ($1)', [String(i)]));
      }
      const count = number(client, c.countEvents);
      const done = await Promise.all(inserts);
      return [{ affected: done.reduce((sum, r) => sum + r.rowCount, 0), count: await count }];
    } finally {
      await client.end();
    }
  },

  batch_error: 'has a Sync behind each query of a pipeline',

  async pipeline() {
    const client = await connect({ pipeline: true });
    try {
      const flying = ["INSERT INTO event (what) VALUES ('a')", 'SELECT 1/0', "INSERT INTO event (what) VALUES ('b')"]
        .map((text) => c.attempt(() => client.query({ text, queryMode: 'extended' })));
      const errors = await Promise.all(flying);
      return [{ results: errors.map(c.state), rows: await number(client, c.countEvents) }, { errors: errors.map(detailOf) }];
    } finally {
      await client.end();
    }
  },

  async multi(client) {
    const good = await client.query(c.twoQueries);
    const [first, balance, last] = good.map((r) => r.rows[0].n);
    const error = await c.attempt(() => client.query(c.failingQueries));
    const rows = await number(client, c.countEvents);
    return [{ first, balance, last, sqlstate: c.state(error), rows }, { tags: good.map((r) => r.command), error: detailOf(error) }];
  },

  async copy_in(client) {
    const into = client.query(copyFrom('COPY event (what) FROM STDIN'));
    await flow(Readable.from(Array.from({ length: 1000 }, (_, i) => `${i}\n`)), into);
    return [{ copied: into.rowCount, rows: await number(client, c.countEvents) }];
  },

  async copy_error(client) {
    const error = await c.attempt(() =>
      flow(Readable.from(['1000\t1\n', '1\t1\n']), client.query(copyFrom('COPY account FROM STDIN'))));
    return [{ sqlstate: c.state(error), rows: await number(client, c.countAccounts), usable: await number(client, 'SELECT 1 AS n') },
      { error: detailOf(error) }];
  },

  async copy_fail(client) {
    async function* broken() {
      yield 'lost\n';
      throw new Error('no more of it');
    }
    const error = await c.attempt(() => flow(Readable.from(broken()), client.query(copyFrom('COPY event (what) FROM STDIN'))));
    return [{ rows: await number(client, c.countEvents), usable: await number(client, 'SELECT 1 AS n') }, { error: detailOf(error) }];
  },

  async copy_out(client) {
    let text = '';
    const out = client.query(copyTo('COPY (SELECT * FROM account ORDER BY id) TO STDOUT'));
    for await (const chunk of out) text += chunk;
    const rows = text.trimEnd().split('\n');
    return [{ rows: rows.length, first: rows[0], last: rows[rows.length - 1] }, { count: out.rowCount }];
  },

  // A portal that is read seven rows at a time. Other queries wait for its end.
  async cursor(client) {
    await client.query('BEGIN');
    const cursor = client.query(new Cursor('SELECT id FROM account WHERE id > $1 ORDER BY id', [0]));
    const ids = [];
    const sizes = [];
    for (;;) {
      const rows = await cursor.read(7);
      sizes.push(rows.length);
      if (rows.length === 0) break;
      ids.push(...rows.map((r) => r.id));
    }
    await cursor.close();
    let updated = 0;
    for (const id of ids.filter((n) => n % 10 === 0)) {
      updated += (await client.query('UPDATE account SET balance = $1 WHERE id = $1', [id])).rowCount;
    }
    // Another one is closed before its end.
    const half = client.query(new Cursor('UPDATE account SET balance = balance RETURNING id'));
    const some = await half.read(3);
    await half.close();
    await client.query('COMMIT');
    return [{ rows: ids.length, sum: ids.reduce((a, b) => a + b), updated }, { sizes, some: some.length }];
  },

  async savepoint(client) {
    let error = null;
    for (const text of [
      'BEGIN', 'UPDATE account SET balance = 1 WHERE id = 1', 'SAVEPOINT a', 'UPDATE account SET balance = 2 WHERE id = 2', 'SELECT 1/0',
      'ROLLBACK TO a', 'UPDATE account SET balance = 3 WHERE id = 3', 'RELEASE a', 'COMMIT',
    ]) {
      error = await c.attempt(() => client.query(text)) || error;
    }
    const r = await client.query('SELECT balance FROM account WHERE id < 4 ORDER BY id');
    return [{ sqlstate: c.state(error), balances: r.rows.map((row) => row.balance) }, { error: detailOf(error) }];
  },

  async transaction(client) {
    const levels = [];
    for (const level of ['SERIALIZABLE', 'REPEATABLE READ']) {
      await client.query(`BEGIN ISOLATION LEVEL ${level}`);
      await client.query('UPDATE account SET balance = balance + $1 WHERE id = 1', [1]);
      levels.push((await client.query('SHOW transaction_isolation')).rows[0].transaction_isolation);
      await client.query('COMMIT');
    }
    await client.query('BEGIN READ ONLY');
    const error = await c.attempt(() => client.query('UPDATE account SET balance = 0 WHERE id = $1', [1]));
    await client.query('ROLLBACK');
    return [{ levels, readonly: c.state(error), balance: await balanceOf(client, 1) }, { error: detailOf(error) }];
  },

  async error(client) {
    const unknown = await c.attempt(() => client.query('SELECT id, nosuch FROM account'));
    const positioned = await c.attempt(() => client.query('SELECT nosuch FROM account WHERE id = $1', [1]));
    await client.query('BEGIN');
    await client.query("INSERT INTO event (what) VALUES ('lost')");
    const twice = await c.attempt(() => client.query(c.duplicate));
    const aborted = await c.attempt(() => client.query('SELECT 1'));
    const committed = await client.query('COMMIT');
    return [{
      sqlstate: c.state(unknown), duplicate: c.state(twice), constraint: twice.constraint, aborted: c.state(aborted),
      rows: await number(client, c.countEvents),
    }, { errors: [unknown, positioned, twice, aborted].map(detailOf), committed: committed.command }];
  },

  // The driver cancels by a second client, to which the first is passed.
  async cancel(client, other) {
    const slow = new pg.Query(c.slowUpdate);
    const failed = new Promise((resolve) => {
      slow.on('error', resolve);
      slow.on('end', () => resolve(null));
    });
    client.query(slow);
    while (await number(other, c.sleeping) === 0) await c.pause(10);
    new pg.Client(config).cancel(client, slow);
    const error = await failed;
    return [{ sqlstate: c.state(error), balance: await balanceOf(client, 1), usable: await number(client, 'SELECT 1 AS n') },
      { error: detailOf(error) }];
  },

  async notify(client, other) {
    const heard = [];
    const both = new Promise((resolve) => client.on('notification', (n) => heard.push(n) === 2 && resolve()));
    await client.query('LISTEN news');
    await other.query("SELECT pg_notify('news', $1)", ['one']);
    await client.query("NOTIFY news, 'two'");
    await both;
    return [{ payloads: heard.map((n) => n.payload) }, { own: heard.map((n) => n.processId === client.processID) }];
  },

  // Uses SQL functions, because the driver has no interface for large objects.
  async large_object(client) {
    await client.query('BEGIN');
    const oid = await number(client, 'SELECT lo_from_bytea(0, $1) AS n', [c.digits]);
    const fd = await number(client, 'SELECT lo_open($1, 393216) AS n', [oid]); // to read and to write
    const size = await number(client, 'SELECT lo_lseek($1, 0, 2) AS n', [fd]);
    await client.query('SELECT lo_lseek($1, 50005, 0)', [fd]);
    const read = await number(client, 'SELECT loread($1, 5) AS n', [fd]);
    await client.query('SELECT lo_truncate($1, 10)', [fd]);
    const truncated = await number(client, 'SELECT lo_lseek($1, 0, 2) AS n', [fd]);
    await client.query('SELECT lo_unlink($1)', [oid]);
    await client.query('COMMIT');
    const gone = await c.attempt(() => client.query('SELECT lo_get(4000000000)'));
    return [{ size, read: read.toString(), truncated, gone: c.state(gone) }, { error: detailOf(gone) }];
  },

  async alone(client) {
    const tags = [];
    for (const text of c.alone) tags.push((await client.query(text)).command);
    const result = { rows: await number(client, c.countEvents), index: await number(client, c.isIndexed) };
    tags.push((await client.query('DROP INDEX CONCURRENTLY account_balance')).command);
    return [result, { tags }];
  },
};

async function runScenarios() {
  const other = await connect(); // it stays, so that the worker does not leave between two scenarios
  for (const [name, run] of Object.entries(scenarios)) {
    if (typeof run === 'string') {
      c.lacks(name, run);
      continue;
    }
    await c.report(name, async () => {
      await other.query('SELECT reset_all()');
      const client = await connect();
      try {
        return await run(client, other);
      } finally {
        await client.end();
      }
    });
  }
  await other.end();
}

const write = (client) => client.query('UPDATE account SET balance = $1 WHERE id = $2', [0, 1]);

const roleOf = async (client) => (await client.query('SHOW fencepost.role')).rows[0]['fencepost.role'];

function onePool() {
  const pool = new pg.Pool({ ...config, max: 1 });
  pool.on('error', () => {}); // of idle connections
  return pool;
}

// refusals tries each way to write.
async function refusals(client) {
  const result = { role: await roleOf(client), read: await balanceOf(client, 1) };
  const refused = await c.attempt(() => write(client));
  result.write = c.state(refused);
  result.severity = refused && refused.severity;
  result.simple = c.state(await c.attempt(() => client.query('UPDATE account SET balance = 0')));
  const pipelined = await connect({ pipeline: true });
  const flying = await Promise.all([
    c.attempt(() => balanceOf(pipelined, 1)), c.attempt(() => write(pipelined)), c.attempt(() => balanceOf(pipelined, 1)),
  ]);
  await pipelined.end();
  result.batch = flying[0] || flying[2] ? 'its reads fail' : c.state(flying[1]);
  result.copy = c.state(await c.attempt(() => flow(Readable.from(['1000\t1\n']), client.query(copyFrom('COPY account FROM STDIN')))));
  await client.query('BEGIN');
  await balanceOf(client, 1);
  result.transaction = c.state(await c.attempt(() => write(client)));
  await client.query('ROLLBACK');
  return result;
}

async function follower() {
  const pool = onePool();
  await c.report('follower', async () => {
    let client = await pool.connect();
    const pid = client.processID;
    const result = await refusals(client);
    client.release();
    client = await pool.connect();
    result.kept = client.processID === pid;
    result.again = await balanceOf(client, 1);
    client.release();
    return [result];
  });
  await pool.end();
}

async function stale(name) {
  const pool = onePool();
  await c.report(name, async () => {
    let client = await pool.connect();
    const pid = client.processID;
    // Without a listener, the end of a checked-out client would end the program.
    client.on('error', () => {});
    await client.query('UPDATE account SET balance = 101 WHERE id = 1');
    if (name === 'stale_transaction') await client.query('BEGIN');
    await balanceOf(client, 1);
    await c.waitToBeSuperseded();
    const late = await c.attempt(() => write(client));
    const result = { sqlstate: c.state(late), severity: late && late.severity };
    client.release(late); // as the driver's manual has it
    client = await pool.connect();
    result.broken = client.processID !== pid;
    result.role = await roleOf(client);
    result.again = c.state(await c.attempt(() => write(client)));
    client.release();
    return [result];
  });
  await pool.end();
}

c.main({ scenarios: runScenarios, follower, stale: () => stale('stale'), stale_transaction: () => stale('stale_transaction') });
