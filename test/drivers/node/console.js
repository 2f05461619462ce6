// The console, by the driver pg: node console.js
'use strict';

const pg = require('pg');

(async () => {
  const client = new pg.Client({ ssl: false });
  await client.connect();
  let leaders = [];
  for (let i = 0; i < 3; i++) {
    const { rows } = await client.query({ name: 'leaders', text: 'SHOW LEADERS' });
    leaders = rows.filter((r) => r.database === process.env.LED).map((r) => [r.resource, r.leader, r.epoch]);
  }
  const refused = await client.query('SHOW nothing').catch((e) => e.code);
  const ping = (await client.query('SELECT 1')).rows[0]['?column?'];
  await client.end();
  console.log(JSON.stringify({ scenario: 'console', result: { leaders, refused, ping } }));
})();
