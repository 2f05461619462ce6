// An example worker that uses pg (npm install pg). It waits until it is the leader, then
// writes once a second. After a refused write it starts again from the read.
//
// WORKER is its name, and RESOURCE what it wants to write (default: billing). PGHOST and
// similar variables give the address of Fencepost.
'use strict';

const { randomUUID } = require('crypto');
const { setTimeout: sleep } = require('timers/promises');
const { Client } = require('pg');

const name = process.env.WORKER;
const resource = process.env.RESOURCE || 'billing';
// It differs each time the process starts. All connections of the process share it.
const workerId = `${name}:${process.pid}:${randomUUID().slice(0, 8)}`;

// ZF002: not the leader. ZF003: the leader again, and its connection did not know yet.
// 40001: the snapshot is older than the lead. The connection remains usable after each.
const startAgain = new Set(['ZF002', 'ZF003', '40001']);

// Several hosts, as in PGHOST=one,two. pg takes one host, so connect tries them in turn.
const hosts = (process.env.PGHOST || '127.0.0.1').split(',');

// connect returns a connection as soon as this worker is the leader.
async function connect() {
  console.log(`${name}: connecting, and waiting to lead`);
  for (const host of hosts.slice(0, -1)) {
    try {
      return await connectTo(host);
    } catch (error) {
      console.log(`${name}: ${host}: ${error.message}`);
    }
  }
  return connectTo(hosts[hosts.length - 1]);
}

async function connectTo(host) {
  const client = new Client({
    host,
    options: `-c fencepost.resource=${resource} -c fencepost.worker=${workerId} -c fencepost.campaign=wait`,
  });
  // The end of a connection is reported here too, in addition to the failing query.
  client.on('error', () => {});
  await client.connect();
  console.log(`${name} leads and writes once a second`);
  return client;
}

// work is one piece of work: what it writes depends only on what it reads here.
async function work(client) {
  await client.query('BEGIN');
  const { rows: [{ count }] } = await client.query('SELECT count(*) FROM charges');
  const { rows: [{ id }] } = await client.query('INSERT INTO charges (worker) VALUES ($1) RETURNING id', [name]);
  await client.query('COMMIT');
  console.log(`${name} wrote row ${id}, after ${count} others`);
}

// lead works until an error ends the connection.
async function lead(client) {
  for (;;) {
    try {
      await work(client);
    } catch (error) {
      if (!startAgain.has(error.code)) throw error;
      console.log(`${name}: ${error.code}: ${error.message}`);
      await client.query('ROLLBACK');
    }
    await sleep(1000);
  }
}

async function main() {
  for (;;) {
    let client;
    try {
      client = await connect();
      await lead(client);
    } catch (error) {
      // ZF001: another worker leads. Anything else: the connection broke, or was refused.
      console.log(`${name}: connection closed: ${error.code}: ${error.message}`);
    }
    if (client) await client.end().catch(() => {}); // It is of no use any more.
    await sleep(1000);
  }
}

main();
