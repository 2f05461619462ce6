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
