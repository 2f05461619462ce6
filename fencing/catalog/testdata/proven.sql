-- What an application has, and beside it everything through which a
-- plain-looking SELECT has been seen to write.
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, mood mood, moods mood[], born date, doc jsonb, tags text[],
    balance numeric(12,2) CHECK (balance > -1000), uid uuid, at timestamptz DEFAULT now(), period tstzrange);
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, customer_id int REFERENCES customers, amount numeric, state varchar(10), placed timestamp,
    total numeric GENERATED ALWAYS AS (amount * 2) STORED);
CREATE INDEX ON customers (lower(name)) WHERE balance > 0;
CREATE INDEX ON customers USING gin (doc);
CREATE TABLE events (id int, day date) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2030-01-01');
CREATE MATERIALIZED VIEW totals AS SELECT customer_id, sum(amount) AS total FROM orders GROUP BY 1;
INSERT INTO customers VALUES (1, 'Ann', 'ok', '{sad,ok}', '1980-02-03', '{"a": {"b": [1, 2]}}', '{x,y}', 10, gen_random_uuid(), now(), '[2020-01-01,2021-01-01)');
INSERT INTO orders (customer_id, amount, state, placed) VALUES (1, 5, 'open', now()), (1, 7, 'done', now());
INSERT INTO events VALUES (1, '2024-05-06');

CREATE TABLE written (v text);
CREATE FUNCTION wr() RETURNS int LANGUAGE sql VOLATILE AS 'INSERT INTO public.written VALUES (''x''); SELECT 1';
CREATE FUNCTION wrb() RETURNS boolean LANGUAGE plpgsql VOLATILE AS 'BEGIN PERFORM public.wr(); RETURN true; END';
CREATE FUNCTION sneaky(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM public.wr(); RETURN 1; END';
CREATE VIEW writing AS SELECT wr() AS a;
CREATE VIEW quiet AS SELECT 1 AS a;
CREATE DOMAIN checked AS int CHECK (wrb());
CREATE TABLE domained (a int, d checked);
CREATE TYPE pair AS (a int, b int);
CREATE FUNCTION to_int(pair) RETURNS int LANGUAGE plpgsql VOLATILE AS 'BEGIN PERFORM public.wr(); RETURN 0; END';
CREATE CAST (pair AS int) WITH FUNCTION to_int(pair);
CREATE TABLE paired (p pair);
CREATE FUNCTION plus(int, int) RETURNS int LANGUAGE plpgsql VOLATILE AS 'BEGIN PERFORM public.wr(); RETURN 0; END';
CREATE OPERATOR + (LEFTARG = int, RIGHTARG = int, FUNCTION = plus);
CREATE TABLE secret (a int);
INSERT INTO secret VALUES (1);
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON secret USING (wrb());
CREATE TABLE attributed (a int);
INSERT INTO attributed VALUES (1);
CREATE FUNCTION badge(attributed) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT public.wr()';
CREATE DOMAIN labelled AS attributed CHECK (wrb());
CREATE FUNCTION upper(text) RETURNS text LANGUAGE plpgsql VOLATILE AS 'BEGIN PERFORM public.wr(); RETURN $1; END';
CREATE AGGREGATE adding (int) (SFUNC = plus, STYPE = int, INITCOND = '0');
CREATE TABLE indexed (a int);
INSERT INTO indexed VALUES (1);
CREATE INDEX ON indexed (a) WHERE sneaky(1) = 1;
CREATE TABLE constrained (a int);
ALTER TABLE constrained ADD CHECK (sneaky(2) = a) NOT VALID;
CREATE TABLE parent (a int);
CREATE TABLE child (d checked) INHERITS (parent);
CREATE DOMAIN "left" AS int CHECK (wrb());
CREATE SCHEMA elsewhere;
CREATE VIEW elsewhere.orders_v AS SELECT wr() AS a;
CREATE TABLE orders_v (a int);
GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC;
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO PUBLIC;

-- Tables with names of functions.
CREATE TABLE elsewhere.version (a checked);
CREATE TABLE count (a checked);
CREATE TABLE lower (a checked);
