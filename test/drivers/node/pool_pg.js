// The pool of the driver pg: node pool_pg.js query|connect
'use strict';

const pg = require('pg');
const c = require('./common.js');
const { insert, work } = require('./pool.js');

const pool = new pg.Pool({ options: process.env.PGOPTIONS, ssl: false, max: 3 });
pool.on('error', () => {}); // of idle connections

c.main({
  query: () => work(() => pool.query(insert, ['query'])),
  connect: () => work(async () => {
    const client = await pool.connect();
    let failed;
    // Without a listener, the end of a checked-out client would end the program.
    const ended = (error) => { failed = error; };
    client.on('error', ended);
    try {
      await client.query(insert, ['connect']);
    } finally {
      client.off('error', ended);
      client.release(failed);
    }
  }),
});
