-- A process id names a backend of one server. After a failover, a session and the control connection
-- may be at two servers, and a backend of another session may have the same process id at the other.
-- So enter is told at which server the session is: started is when that server was started, as
-- timestamptz_send of pg_postmaster_start_time in hexadecimal digits, which no setting changes.
CREATE FUNCTION fencepost.enter(fence integer, pid integer, started text, note bigint, worker text, incarnation text, told bigint, held bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF encode(timestamptz_send(pg_postmaster_start_time()), 'hex') <> started THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = 'this connection leads to another server than Fencepost''s control connection',
            HINT = 'Their address leads to two servers, as it may in a failover. Connect again when one of them is stopped. If that does not help, restart this Fencepost.';
    END IF;
    PERFORM fencepost.enter(fence, pid, note, worker, incarnation, told, held);
END $$;

SELECT fencepost.seal();
