// The pool of the driver postgres: node pool_postgres.js pool
'use strict';

const postgres = require('postgres');
const c = require('./common.js');
const { work } = require('./pool.js');

const sql = postgres({ max: 3, ssl: false, connection: { options: process.env.PGOPTIONS }, onnotice: () => {} });

c.main({ pool: () => work(() => sql`INSERT INTO work (what) VALUES (${'postgres'})`) });
