-- Texts: what the messages, details and hints of errors are made of.
--
-- These conventions hold in every file. All objects belong to the control role. A function pins its
-- search_path, so that names and operators mean those of pg_catalog whatever the session has set. It
-- declares that a name which is both a variable and a column means the variable. No literal contains a
-- backslash, because standard_conforming_strings would change its meaning.

-- quoted returns a name as a JSON string of printable ASCII. It is readable in every client_encoding, stays
-- on one line, and cannot end the string or be mistaken for the text around it. NULL becomes null.
CREATE OR REPLACE FUNCTION fencepost.quoted(value text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    result text := '';
    letter text;
    point  integer;
    escape text := chr(92) || 'u'; -- a backslash in a literal depends on standard_conforming_strings
    known  boolean := getdatabaseencoding() = 'UTF8'
        OR pg_encoding_max_length(pg_char_to_encoding(getdatabaseencoding())) = 1;
BEGIN
    IF value IS NULL THEN
        RETURN 'null';
    END IF;
    FOREACH letter IN ARRAY string_to_array(to_json(left(value, 255))::text, NULL) LOOP
        IF letter COLLATE "C" BETWEEN ' ' AND '~' THEN
            result := result || letter;
        ELSIF NOT known THEN
            result := result || '?';
        ELSE
            point := ascii(letter);
            IF point > 65535 THEN -- a surrogate pair, as JSON writes it
                result := result || escape || to_hex(55296 + (point - 65536) / 1024);
                point := 56320 + (point - 65536) % 1024;
            END IF;
            result := result || escape || lpad(to_hex(point), 4, '0');
        END IF;
    END LOOP;
    RETURN result;
END $$;

-- plain reports whether a name means itself in every shell. Clients choose the names of resources and
-- workers, so a hint contains a command only if all names in it are plain.
CREATE OR REPLACE FUNCTION fencepost.plain(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT name ~ '^[A-Za-z0-9_.:@%+=,/][A-Za-z0-9_.:@%+=,/-]*$'
$$;

-- database_word names the database in a command: by its name if that is plain.
CREATE OR REPLACE FUNCTION fencepost.database_word() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN fencepost.plain(current_database()) THEN current_database()::text ELSE 'DATABASE' END
$$;

-- holder names the holder of an epoch.
CREATE OR REPLACE FUNCTION fencepost.holder(worker text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN worker IS NULL THEN 'nobody' ELSE 'worker ' || fencepost.quoted(worker) END;
END $$;

-- detail returns the line of JSON that an error carries as its DETAIL.
CREATE OR REPLACE FUNCTION fencepost.detail(resource text, worker text, incarnation text, epoch bigint, current_epoch bigint, current_worker text)
RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    RETURN format('{"resource":%s,"worker":%s,"incarnation":%s,"epoch":%s,"current_epoch":%s,"current_worker":%s}',
        fencepost.quoted(resource), fencepost.quoted(worker), fencepost.quoted(incarnation),
        coalesce(epoch, 0), coalesce(current_epoch, 0), fencepost.quoted(current_worker));
END $$;

-- restored_hint says what to do about a database that was restored from an older state, where epoch was
-- granted before.
CREATE OR REPLACE FUNCTION fencepost.restored_hint(epoch bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('When all workers of the lost epochs have stopped, run: fencepost generation bump --database %s --above %s',
        fencepost.database_word(), epoch)
$$;
