-- Runs after shop.sql with docker-compose.secure.yml: the passwords that secrets.sh made up.
\i /secrets/postgres/roles.sql
