// The application around a pool, which the programs pool_*.js share. The Go package
// above describes what it does.
'use strict';

const readline = require('readline');
const c = require('./common.js');

exports.insert = 'INSERT INTO work (what) VALUES ($1)';

// work calls insert for ever, three at a time, whatever it rejects with. Each line on
// standard input makes it silent, or ends the silence.
exports.work = (insert) => {
  let silent = false;
  readline.createInterface({ input: process.stdin }).on('line', () => { silent = !silent; });
  const loop = async () => {
    for (;;) {
      if (!silent) c.printLine({ scenario: 'insert', result: seen(await c.attempt(insert)) });
      await c.pause(50);
    }
  };
  return Promise.all([loop(), loop(), loop()]);
};

const seen = (error) => (error === null ? 'ok' : error.code || error.message);
