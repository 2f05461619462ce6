-- The application's database, for docker-compose.yml.
CREATE ROLE shop LOGIN PASSWORD 'example-shop';
CREATE DATABASE shop OWNER shop;
\connect shop
SET ROLE shop;
CREATE TABLE charges (
	id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	worker  text NOT NULL,
	at      timestamptz NOT NULL DEFAULT now()
);

-- The profile unfenced: the same queue of invoices for a fenced and for an unfenced pair of
-- workers. The view lists the invoices that a pair has charged more than once.
CREATE SCHEMA fenced;
CREATE TABLE fenced.invoices (id int PRIMARY KEY, state text NOT NULL DEFAULT 'open');
CREATE TABLE fenced.charges (invoice int NOT NULL, worker text NOT NULL, at timestamptz NOT NULL DEFAULT now());
INSERT INTO fenced.invoices SELECT generate_series(1, 10000);
CREATE SCHEMA unfenced;
CREATE TABLE unfenced.invoices (LIKE fenced.invoices INCLUDING ALL);
CREATE TABLE unfenced.charges (LIKE fenced.charges INCLUDING ALL);
INSERT INTO unfenced.invoices SELECT * FROM fenced.invoices;
CREATE VIEW charged_twice AS
	SELECT pair, invoice, string_agg(worker, ', ' ORDER BY at) AS by
	FROM (SELECT 'fenced' AS pair, * FROM fenced.charges UNION ALL SELECT 'unfenced', * FROM unfenced.charges) AS charges
	GROUP BY pair, invoice
	HAVING count(*) > 1;
