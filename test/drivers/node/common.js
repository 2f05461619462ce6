// Shared code of the node programs. The Go package above describes what they do.
'use strict';

const readline = require('readline');

exports.insertTyped = `INSERT INTO typed (i4, i8, num, txt, yes, raw, at, doc, list, uid, nothing)
  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
  RETURNING i4, i8, num, txt, yes, raw, at, doc, list, uid, nothing`;
exports.someText = "h\u00e9llo; -- '$1";
exports.someUUID = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11';
exports.sleeping = "SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
exports.slowUpdate = 'UPDATE account SET balance = 0 FROM pg_sleep(60) WHERE id = 1';
exports.countEvents = 'SELECT count(*)::int AS n FROM event';
exports.duplicate = 'INSERT INTO account VALUES (1, 1)';
exports.twoQueries = 'SELECT 1 AS n; UPDATE account SET balance = 107 WHERE id = 1 RETURNING balance AS n; SELECT 2 AS n';
exports.failingQueries =
  "BEGIN; INSERT INTO event (what) VALUES ('kept'); COMMIT; INSERT INTO event (what) VALUES ('lost'); SELECT 1/0";
exports.countAccounts = 'SELECT count(*)::int AS n FROM account';
exports.isIndexed = "SELECT count(*)::int AS n FROM pg_indexes WHERE indexname = 'account_balance'";
exports.alone = [
  'VACUUM account',
  'CREATE INDEX CONCURRENTLY account_balance ON account (balance)',
  'CALL chunks(3)',
  'ANALYZE account',
];
exports.digits = Buffer.from('0123456789'.repeat(10000));

// typedResult returns the result of a row of the table typed. Both drivers read it
// into the same types.
exports.typedResult = (row) => ({
  int4: row.i4, int8: row.i8, numeric: row.num, text: row.txt, bool: row.yes, bytea: row.raw.toString('hex'),
  timestamptz: row.at.toISOString(), jsonb: row.doc, array: row.list, uuid: row.uid, null: row.nothing,
});

const printLine = (line) => console.log(JSON.stringify(line));
exports.printLine = printLine;

// report runs a scenario, which returns its result and a detail, and prints its line.
exports.report = async (scenario, run) => {
  try {
    const [result, detail] = await run();
    printLine({ scenario, result, detail });
  } catch (error) {
    printLine({ scenario, failed: String(error.stack) });
  }
};

exports.lacks = (scenario, why) => printLine({ scenario, lacks: why });

// attempt returns the error that run rejects with, or null.
exports.attempt = async (run) => {
  try {
    await run();
    return null;
  } catch (error) {
    return error;
  }
};

exports.state = (error) => (error === null ? 'ok' : error.code || String(error));

exports.pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// waitToBeSuperseded reports that the program has read, and waits for a line to continue.
exports.waitToBeSuperseded = () => {
  printLine({ ready: true });
  return new Promise((resolve) => {
    const input = readline.createInterface({ input: process.stdin });
    input.once('line', () => {
      input.close();
      resolve();
    });
  });
};

// main runs the part that the command line names.
exports.main = (parts) => {
  parts[process.argv[2]]().then(() => process.exit(0), (error) => {
    console.error(error);
    process.exit(1);
  });
};
