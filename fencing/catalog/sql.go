package catalog

// The queries that read the catalog. Objects that initdb made have OIDs below 16384
// (FirstNormalObjectId); "built in" means that here. All queries of one full read run
// in one transaction with one snapshot.

// fingerprintSQL returns a value that changes whenever anything that the facts are made
// of changes: the number of rows of each table, and a sum over the transactions that
// wrote them. It covers only those built-in objects that are few; the others are read
// again with every full read.
const fingerprintSQL = `SELECT concat_ws(' ',
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_class WHERE oid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((attrelid::int8 << 32) | xmin::text::int8) # attnum)) FROM pg_attribute WHERE attrelid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_type WHERE oid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_proc WHERE oid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_operator WHERE oid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_cast WHERE oid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_rewrite WHERE oid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_constraint WHERE oid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_opclass WHERE oid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_amop WHERE oid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_amproc WHERE oid >= 16384),
	(SELECT concat_ws(',', count(*), sum(hashint8((oid::int8 << 32) | xmin::text::int8))) FROM pg_statistic_ext),
	(SELECT concat_ws(',', count(*), sum(hashint8((inhrelid::int8 << 32) | xmin::text::int8) # inhseqno)) FROM pg_inherits),
	(SELECT datid FROM pg_stat_get_activity(pg_backend_pid())))`

// fineTypes are the types whose values never run a user's code: built-in types, enums,
// and arrays of enums. A built-in domain to which a constraint was added is not one of
// them.
const fineTypes = `fine AS MATERIALIZED (
	SELECT t.oid FROM pg_type t WHERE t.oid < 16384
		AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.contypid = t.oid AND c.oid >= 16384)
	UNION ALL SELECT t.oid FROM pg_type t WHERE t.oid >= 16384 AND t.typtype = 'e'
	UNION ALL SELECT t.typarray FROM pg_type t WHERE t.oid >= 16384 AND t.typtype = 'e')`

// apartTypes are the user-defined types that no value of another type is converted to
// implicitly: base types and ranges, and their arrays. (A domain accepts values of its
// base type, and a composite type accepts any row.)
const apartTypes = `apart AS MATERIALIZED (
	SELECT t.oid FROM pg_type t LEFT JOIN pg_type e ON e.typarray = t.oid
	WHERE t.oid >= 16384 AND (coalesce(e.typtype, t.typtype) IN ('r', 'm') OR coalesce(e.typtype, t.typtype) = 'b')
		AND (e.oid IS NULL OR e.oid >= 16384))`

// asideTypes are the user-defined types that an expression has only if they are named,
// by a column or in the text: those in apartTypes, domains, composite types that belong
// to no relation, and their arrays.
const asideTypes = `aside AS MATERIALIZED (
	SELECT t.oid FROM pg_type t LEFT JOIN pg_type e ON e.typarray = t.oid
	LEFT JOIN pg_class c ON c.oid = coalesce(nullif(t.typrelid, 0), e.typrelid)
	WHERE t.oid >= 16384 AND (e.oid IS NULL OR e.oid >= 16384) AND coalesce(c.relkind, 'c') = 'c'
		AND coalesce(e.typtype, t.typtype) <> 'e')`

// nothingSQL returns why nothing can be proven, or "" if something can. Casts, default
// operator classes and members of built-in operator families are used without being
// named.
const nothingSQL = `WITH ` + apartTypes + `, ` + asideTypes + `
SELECT CASE
	WHEN EXISTS (SELECT FROM pg_cast c WHERE c.oid >= 16384 AND c.castmethod <> 'b'
		AND c.castsource NOT IN (SELECT oid FROM aside) AND c.casttarget NOT IN (SELECT oid FROM aside))
	THEN 'the database has a cast between types that every statement can meet'
	WHEN EXISTS (SELECT FROM pg_cast c WHERE c.oid >= 16384 AND c.castcontext = 'i'
		AND c.castsource NOT IN (SELECT oid FROM apart) AND c.casttarget IN (SELECT oid FROM apart))
	THEN 'the database has an implicit cast into a type that is not built in'
	WHEN EXISTS (SELECT FROM pg_opclass o JOIN pg_am a ON a.oid = o.opcmethod WHERE o.oid >= 16384 AND o.opcdefault
		AND a.amname IN ('btree', 'hash') AND o.opcintype NOT IN (SELECT oid FROM aside))
	THEN 'the database has a default operator class for a type that every statement can meet'
	WHEN EXISTS (SELECT FROM pg_amproc p WHERE p.oid >= 16384 AND p.amprocfamily < 16384
			AND (p.amproclefttype NOT IN (SELECT oid FROM aside) OR p.amprocrighttype NOT IN (SELECT oid FROM aside)))
		OR EXISTS (SELECT FROM pg_amop p WHERE p.oid >= 16384 AND p.amopfamily < 16384
			AND (p.amoplefttype NOT IN (SELECT oid FROM aside) OR p.amoprighttype NOT IN (SELECT oid FROM aside)))
	THEN 'a built-in operator family was given more members'
	WHEN EXISTS (SELECT FROM pg_amop p JOIN pg_am a ON a.oid = p.amopmethod
		WHERE p.oid >= 16384 AND p.amopopr < 16384 AND (a.amname IN ('btree', 'hash') OR a.oid >= 16384))
	THEN 'a built-in operator was given another meaning for sorting or hashing'
	WHEN EXISTS (SELECT FROM pg_constraint c WHERE c.oid >= 16384 AND c.contypid <> 0 AND c.contypid < 16384)
	THEN 'a built-in domain was given a constraint'
	WHEN EXISTS (SELECT FROM pg_depend d WHERE d.refobjid >= 16384 AND d.objid < 16384 AND d.deptype = 'n'
		AND d.classid IN ('pg_rewrite'::regclass, 'pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass, 'pg_constraint'::regclass)
		AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass, 'pg_class'::regclass))
	THEN 'something built in was changed'
	ELSE '' END`

// relationsSQL returns every relation's name, why it is not harmless ("" if it is), and
// whether a relation of that name is user-defined.
//
// Planning a query evaluates constant expressions that belong to a relation, so these
// must not depend on user-defined functions: index expressions and predicates, CHECK
// constraints, partition keys, extended statistics. A parent is only as harmless as its
// children.
const relationsSQL = `WITH RECURSIVE ` + fineTypes + `,
users (classid, objid) AS MATERIALIZED (
	SELECT d.classid, d.objid FROM pg_depend d
	WHERE d.refobjid >= 16384 AND (d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_opclass'::regclass, 'pg_opfamily'::regclass, 'pg_cast'::regclass)
			OR d.refclassid = 'pg_type'::regclass AND d.refobjid NOT IN (SELECT oid FROM fine) AND d.objsubid = 0)
		AND d.classid IN ('pg_class'::regclass, 'pg_constraint'::regclass, 'pg_statistic_ext'::regclass)),
bad (oid, why) AS (
	SELECT c.oid, CASE c.relkind WHEN 'v' THEN 'is a view' WHEN 'f' THEN 'is a foreign table' WHEN 'S' THEN 'is a sequence' ELSE 'is no table' END
		FROM pg_class c WHERE c.relkind NOT IN ('r', 'p', 'm', 'i', 'I', 't') AND NOT (c.relkind = 'v' AND c.oid < 16384)
	UNION SELECT c.oid, 'has row security' FROM pg_class c WHERE c.relrowsecurity
	UNION SELECT r.ev_class, 'has a rule' FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
		WHERE r.oid >= 16384 AND c.relkind NOT IN ('v', 'm')
	UNION SELECT a.attrelid, 'has a column of a type that is not built in' FROM pg_attribute a
		WHERE a.attrelid >= 16384 AND a.atttypid <> 0 AND a.atttypid NOT IN (SELECT oid FROM fine)
	UNION SELECT a.attrelid, 'has a column that is computed when it is read' FROM pg_attribute a
		WHERE a.attrelid >= 16384 AND a.attgenerated = 'v'
	UNION SELECT i.indrelid, 'has an index that uses what is not built in' FROM pg_index i JOIN users u ON u.objid = i.indexrelid AND u.classid = 'pg_class'::regclass
	UNION SELECT u.objid, 'is partitioned by what is not built in' FROM users u WHERE u.classid = 'pg_class'::regclass
	UNION SELECT c.conrelid, 'has a constraint that uses what is not built in' FROM pg_constraint c
		JOIN users u ON u.objid = c.oid AND u.classid = 'pg_constraint'::regclass WHERE c.conrelid <> 0
	UNION SELECT s.stxrelid, 'has statistics that use what is not built in' FROM pg_statistic_ext s
		JOIN users u ON u.objid = s.oid AND u.classid = 'pg_statistic_ext'::regclass
	UNION SELECT i.inhparent, 'has a child that is not harmless' FROM bad b JOIN pg_inherits i ON i.inhrelid = b.oid)
SELECT c.relname::text, coalesce(max(b.why), ''), bool_or(c.oid >= 16384)
FROM pg_class c LEFT JOIN bad b ON b.oid = c.oid WHERE c.relkind NOT IN ('i', 'I', 't') GROUP BY 1`

// expandArray has the bodies of information_schema._pg_expandarray, of PostgreSQL 15 and of 18. Queries of primary keys
// and indexes call it, such as those of JDBC. They qualify everything that they use.
const expandArray = `('select $1[s], s operator(pg_catalog.-) pg_catalog.array_lower($1,1) operator(pg_catalog.+) 1 from ' ||
	'pg_catalog.generate_series(pg_catalog.array_lower($1,1), pg_catalog.array_upper($1,1), 1) as g(s)',
	'SELECT * FROM pg_catalog.unnest($1) WITH ORDINALITY')`

// functionsSQL returns every function's name, why it is not harmless, whether a
// function of that name is volatile, and whether one of them can be written as x.name.
//
// A function that takes or returns a pseudo-type that only the server produces
// (cstring, internal) is not meant to be called; some of them run code for any type
// that they are given. A built-in function in SQL is harmless if its body was parsed
// when it was created; those that are listed by name schema-qualify everything they
// use.
const functionsSQL = `SELECT p.proname::text,
	CASE WHEN bool_or(p.oid >= 16384) THEN 'is not built in'
	WHEN bool_or(NOT (l.lanname = 'internal' OR l.lanname = 'sql' AND p.oid < 10000 AND (p.prosqlbody IS NOT NULL
			OR p.proname IN ('quote_literal', 'quote_nullable', 'textanycat', 'anytextcat'))
		OR l.lanname = 'sql' AND p.proname = '_pg_expandarray' AND regexp_replace(p.prosrc, '\s+', ' ', 'g') IN ` + expandArray + `)) THEN 'is no plain built-in function'
	WHEN bool_or('cstring'::regtype = ANY (p.proargtypes::oid[]) OR 'internal'::regtype = ANY (p.proargtypes::oid[])
		OR p.prorettype IN ('cstring'::regtype, 'internal'::regtype, '"any"'::regtype, 'trigger'::regtype, 'event_trigger'::regtype,
			'language_handler'::regtype, 'fdw_handler'::regtype, 'index_am_handler'::regtype, 'table_am_handler'::regtype, 'tsm_handler'::regtype))
		THEN 'is part of the server''s inside'
	ELSE '' END,
	bool_or(p.oid < 16384 AND p.provolatile = 'v'),
	bool_or(p.oid >= 16384 AND p.pronargs >= 1 AND p.pronargs - p.pronargdefaults <= 1)
FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang GROUP BY 1`

// operatorsSQL returns the name of every built-in operator, and why it is not harmless.
// A user-defined operator of the same name does no harm if all its operands are of
// types in apartTypes, and if two untyped constants resolve to text, which they do if
// there is such an operator for text.
const operatorsSQL = `WITH ` + apartTypes + `
SELECT o.oprname::text, CASE
	WHEN bool_or(o.oid >= 16384 AND (o.oprleft = 0 OR o.oprleft NOT IN (SELECT oid FROM apart) OR o.oprright NOT IN (SELECT oid FROM apart)))
		OR bool_or(o.oid >= 16384) AND NOT bool_or(o.oid < 16384 AND o.oprleft = 'text'::regtype AND o.oprright = 'text'::regtype)
	THEN 'is also an operator that is not built in'
	WHEN bool_or(o.oid < 16384 AND p.provolatile = 'v') THEN 'is volatile'
	ELSE '' END
FROM pg_operator o LEFT JOIN pg_proc p ON p.oid = o.oprcode GROUP BY 1 HAVING bool_or(o.oid < 16384)`

// typesSQL returns the name of every type except relations' row types, why it is not
// harmless, and whether a row can be cast to it by x.name, which is possible for a
// domain over a composite type.
const typesSQL = `WITH ` + fineTypes + `
SELECT t.typname::text, CASE WHEN bool_and(f.oid IS NOT NULL) THEN ''
	WHEN bool_or(t.typtype = 'd') THEN 'is a domain' ELSE 'is not built in' END,
	bool_or(t.typtype = 'd' AND EXISTS (SELECT FROM pg_type b WHERE b.oid = t.typbasetype AND b.typtype IN ('c', 'd')))
FROM pg_type t LEFT JOIN fine f ON f.oid = t.oid
LEFT JOIN pg_class c ON c.oid = nullif(t.typrelid, 0) AND c.relkind <> 'c'
WHERE t.oid < 16384 OR c.oid IS NULL GROUP BY 1`
