CREATE FUNCTION fencepost.seal() RETURNS void LANGUAGE plpgsql AS $$ BEGIN END $$;
