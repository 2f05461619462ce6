// What builds on the driver pg: node orms.js knex|pg-promise|sequelize|typeorm scenarios|follower|stale|stale_transaction
// The driver pg reads libpq's variables, PGOPTIONS too, so that they need no more to name resource and worker.
'use strict';

const c = require('./common.js');

const { PGHOST: host, PGPORT: port, PGUSER: user, PGDATABASE: database, PGOPTIONS: options } = process.env;

// Each has a pool of one connection. query takes a pool, or a transaction, and returns rows;
// transaction calls a function with a transaction, or within another with a savepoint; create
// makes a table of a model, or changes it to have the column more, and insert a row of it.
const libraries = {
  knex() {
    const db = require('knex')({ client: 'pg', connection: { host, port, user, database, options }, pool: { min: 0, max: 1 } });
    return {
      db,
      query: async (on, text, values = []) => (await on.raw(text.replace(/\$\d/g, '?'), values)).rows,
      transaction: (on, level, run) => on.transaction(run, level ? { isolationLevel: level.toLowerCase() } : {}),
      create: async (more) => {
        if (!more) return db.schema.createTable('model', (t) => { t.increments('id'); t.string('name').unique(); t.jsonb('doc'); });
        if (!await db.schema.hasColumn('model', 'more')) await db.schema.alterTable('model', (t) => t.integer('more'));
      },
      insert: async (row) => (await db('model').insert(row).returning('id'))[0].id,
      close: () => db.destroy(),
    };
  },

  'pg-promise'() {
    const pgp = require('pg-promise')({ noWarnings: true });
    const db = pgp({ max: 1 });
    const levels = { SERIALIZABLE: 'serializable', 'REPEATABLE READ': 'repeatableRead' };
    const mode = (level) => new pgp.txMode.TransactionMode({ tiLevel: pgp.txMode.isolationLevel[levels[level]] });
    return {
      db,
      query: (on, text, values) => (values ? on.any(new pgp.PreparedStatement({ name: text.slice(0, 63), text, values })) : on.any(text)),
      transaction: (on, level, run) => (level ? on.tx({ mode: mode(level) }, run) : on.tx(run)),
      create: (more) => db.none(more ? 'ALTER TABLE model ADD COLUMN IF NOT EXISTS more int' : 'CREATE TABLE model (id serial, name text UNIQUE, doc jsonb)'),
      insert: async (row) => (await db.one(`${pgp.helpers.insert(row, ['name', 'doc:json'], 'model')} RETURNING id`)).id,
      close: () => db.$pool.end(),
    };
  },

  sequelize() {
    const { Sequelize, DataTypes } = require('sequelize');
    const db = new Sequelize(database, user, '', { dialect: 'postgres', host, port, dialectOptions: { options }, pool: { max: 1 }, logging: false });
    let model;
    return {
      db,
      // It takes the result of a SHOW apart, unless it is told that it is one of a SELECT.
      query: async (on, text, values = []) => {
        const more = { bind: values, transaction: on === db ? undefined : on };
        return /^(SELECT|SHOW)/.test(text) ? db.query(text, { ...more, type: 'SELECT' }) : (await db.query(text, more))[0];
      },
      transaction: (on, level, run) => db.transaction({ isolationLevel: level, transaction: on === db ? undefined : on }, run),
      create: async (more) => {
        model = db.define('model', { name: { type: DataTypes.STRING, unique: 'name' }, doc: DataTypes.JSONB, ...(more && { more: DataTypes.INTEGER }) },
          { tableName: 'model', timestamps: false });
        await model.sync({ alter: more });
      },
      insert: async (row) => (await model.create(row)).id,
      close: () => db.close(),
    };
  },

  typeorm() {
    const { DataSource, EntitySchema } = require('typeorm');
    const columns = { id: { type: 'int', primary: true, generated: true }, name: { type: 'text', unique: true }, doc: { type: 'jsonb' } };
    const open = (more) => new DataSource({
      type: 'postgres', host, port: Number(port), username: user, database, extra: { options, max: 1 }, synchronize: false,
      entities: [new EntitySchema({ name: 'model', columns: { ...columns, ...(more && { more: { type: 'int', nullable: true } }) } })],
    });
    const library = {
      db: open(false),
      // It returns the rows of an UPDATE with their number.
      query: async (on, text, values) => {
        const result = await (on.manager || on).query(text, values);
        return Array.isArray(result[0]) ? result[0] : result;
      },
      transaction: (on, level, run) => (level ? on.transaction(level, run) : (on.manager || on).transaction(run)),
      create: async (more) => {
        await library.close();
        library.db = open(more);
        await library.init();
        await library.db.synchronize();
      },
      insert: async (row) => (await library.db.getRepository('model').save(row)).id,
      init: () => library.db.initialize(),
      close: () => library.db.destroy(),
    };
    return library;
  },
};

const library = libraries[process.argv[2]]();
process.argv.splice(2, 1);

const query = (text, values) => library.query(library.db, text, values);
const number = async (text, values) => (await query(text, values))[0].n;
const balance = () => number('SELECT balance AS n FROM account WHERE id = $1', [1]);
const write = () => query('UPDATE account SET balance = $1 WHERE id = $2', [0, 1]);
const within = (run, level) => library.transaction(library.db, level, run);

// cause is the error of pg in that of the library.
const cause = (e) => (e && (e.original || e.driverError)) || e;
const state = (e) => c.state(cause(e));
const detail = (e) => e && [e.name, e.message, cause(e).code, cause(e).severity, cause(e).detail, cause(e).position, cause(e).constraint];

const scenarios = {
  async prepared() {
    const balances = [];
    for (let i = 1; i <= 12; i++) {
      balances.push((await query('UPDATE account SET balance = balance + $1 WHERE id = $2 RETURNING balance AS n', [i, (i % 3) + 1]))[0].n);
    }
    return [{ balances }];
  },

  async savepoint() {
    let error;
    await within(async (outer) => {
      await library.query(outer, 'UPDATE account SET balance = $1 WHERE id = 1', [1]);
      error = await c.attempt(() => library.transaction(outer, undefined, async (inner) => {
        await library.query(inner, 'UPDATE account SET balance = $1 WHERE id = 2', [2]);
        await library.query(inner, 'SELECT 1/$1::int', [0]);
      }));
      await library.transaction(outer, undefined, (inner) => library.query(inner, 'UPDATE account SET balance = $1 WHERE id = 3', [3]));
    });
    const rows = await query('SELECT balance FROM account WHERE id < 4 ORDER BY id');
    return [{ sqlstate: state(error), balances: rows.map((row) => row.balance) }, detail(error)];
  },

  async transaction() {
    const levels = [];
    for (const level of ['SERIALIZABLE', 'REPEATABLE READ']) {
      await within(async (tx) => {
        await library.query(tx, 'UPDATE account SET balance = balance + $1 WHERE id = 1', [1]);
        levels.push((await library.query(tx, 'SHOW transaction_isolation'))[0].transaction_isolation);
      }, level);
    }
    const error = await c.attempt(() => within(async (tx) => {
      await library.query(tx, 'SET TRANSACTION READ ONLY');
      await library.query(tx, 'UPDATE account SET balance = 0 WHERE id = $1', [1]);
    }));
    return [{ levels, readonly: state(error), balance: await balance() }, detail(error)];
  },

  async error() {
    const unknown = await c.attempt(() => query('SELECT id, nosuch FROM account'));
    let twice;
    let aborted;
    const lost = await c.attempt(() => within(async (tx) => {
      await library.query(tx, "INSERT INTO event (what) VALUES ('lost')");
      twice = await c.attempt(() => library.query(tx, c.duplicate));
      aborted = await c.attempt(() => library.query(tx, 'SELECT 1'));
      throw twice;
    }));
    return [{
      sqlstate: state(unknown), duplicate: state(twice), constraint: cause(twice).constraint, aborted: state(aborted), rows: await number(c.countEvents),
    }, [unknown, twice, aborted, lost].map(detail)];
  },

  async model() {
    await library.create(false);
    const first = await library.insert({ name: 'a', doc: { x: [1] } });
    const twice = await c.attempt(() => library.insert({ name: 'a', doc: {} }));
    await library.create(true);
    await library.create(true);
    const columns = (await query("SELECT column_name FROM information_schema.columns WHERE table_name = 'model' ORDER BY 1")).map((row) => row.column_name);
    const rows = await number("SELECT count(*)::int AS n FROM model WHERE doc = '{\"x\": [1]}'");
    await query('DROP TABLE model');
    return [{ first, sqlstate: state(twice), columns, rows }, detail(twice)];
  },
};

async function follower() {
  const pid = () => number('SELECT pg_backend_pid() AS n');
  const before = await pid();
  const result = { role: (await query('SHOW fencepost.role'))[0]['fencepost.role'], read: await balance() };
  result.write = state(await c.attempt(write));
  result.simple = state(await c.attempt(() => query('UPDATE account SET balance = 0')));
  result.transaction = state(await c.attempt(() => within(async (tx) => {
    await library.query(tx, 'SELECT 1');
    await library.query(tx, 'UPDATE account SET balance = 0');
  })));
  Object.assign(result, { kept: await pid() === before, again: await balance() });
  return { ...result, model: state(await c.attempt(() => library.create(false))) };
}

async function stale(transaction) {
  await query('UPDATE account SET balance = 101 WHERE id = 1');
  let late;
  const finish = async (on) => {
    await library.query(on, 'SELECT balance FROM account WHERE id = 1');
    await c.waitToBeSuperseded();
    late = await c.attempt(() => library.query(on, 'UPDATE account SET balance = $1 WHERE id = $2', [0, 1]));
    throw late;
  };
  // Of a transaction, some tell the error of the ROLLBACK instead, which has no SQLSTATE.
  const told = await c.attempt(() => (transaction ? within(finish) : finish(library.db)));
  console.error(`it was told: ${told}`);
  const role = async () => (await query('SHOW fencepost.role'))[0]['fencepost.role'];
  // The pool may tell the end of the connection once more.
  return { sqlstate: state(late), severity: cause(late).severity, role: await role().catch(role), again: state(await c.attempt(write)) };
}

async function run(name, part) {
  process.on('uncaughtException', (e) => { console.error(`uncaught: ${e.stack}`); process.exit(1); });
  if (library.init) await library.init();
  await c.report(name, part);
  await library.close();
}

c.main({
  async scenarios() {
    const other = new (require('pg').Client)(); // it stays, so that the worker does not leave when a pool is empty
    await other.connect();
    if (library.init) await library.init();
    for (const [name, scenario] of Object.entries(scenarios)) {
      await query('SELECT reset_all()');
      await c.report(name, scenario);
    }
    await library.close();
    await other.end();
  },
  follower: () => run('follower', async () => [await follower()]),
  stale: () => run('stale', async () => [await stale(false)]),
  stale_transaction: () => run('stale_transaction', async () => [await stale(true)]),
});
