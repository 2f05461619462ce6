# DBI with DBD::Pg: perl dbdpg.pl scenarios|follower|stale|stale_transaction
# The Go package above describes what it does.
use strict;
use warnings;
use DBI;
use JSON::PP;

$| = 1;
my $json = JSON::PP->new->canonical->ascii->convert_blessed;

sub line { print $json->encode({@_}), "\n" }

sub open_db { DBI->connect('dbi:Pg:', undef, undef, {AutoCommit => 1, RaiseError => 1, PrintError => 0, pg_bool_tf => 0}) }

sub one { my ($db, $sql, @values) = @_; return ($db->selectrow_array($sql, undef, @values))[0] }

sub number { return 0 + one(@_) }

# attempt returns ok, or the SQLSTATE of the error.
sub attempt { my ($db, $run) = @_; return eval { $run->(); 1 } ? 'ok' : $db->state }

my $count = 'SELECT count(*) FROM event';
my $balance = 'SELECT balance FROM account WHERE id = ?';

my @scenarios = (
	prepared => sub {
		my $db = shift;
		my $add = $db->prepare('UPDATE account SET balance = balance + ? WHERE id = ? RETURNING balance');
		my @balances = map { $add->execute($_, $_ % 3 + 1); 0 + $add->fetchrow_array } 1 .. 12;
		return {balances => \@balances}, [$add->{TYPE}, $add->{NAME}, $add->rows];
	},
	copy_in => sub {
		my $db = shift;
		$db->do('COPY event (what) FROM STDIN');
		$db->pg_putcopydata("$_\n") for 0 .. 999;
		$db->pg_putcopyend;
		return {copied => 1000, rows => number($db, $count)}, [];
	},
	copy_error => sub {
		my $db = shift;
		$db->do('COPY account FROM STDIN');
		my $error = attempt($db, sub { $db->pg_putcopydata("1000\t1\n1\t1\n"); $db->pg_putcopyend });
		return {sqlstate => $error, rows => number($db, 'SELECT count(*) FROM account'), usable => number($db, 'SELECT 1')}, [$db->errstr];
	},
	copy_out => sub {
		my ($db, @rows, $row) = shift;
		$db->do('COPY (SELECT * FROM account ORDER BY id) TO STDOUT');
		while ($db->pg_getcopydata($row) >= 0) { chomp $row; push @rows, $row }
		return {rows => 0 + @rows, first => $rows[0], last => $rows[-1]}, [];
	},
	savepoint => sub {
		my $db = shift;
		$db->begin_work;
		$db->do('UPDATE account SET balance = 1 WHERE id = 1');
		$db->pg_savepoint('a');
		$db->do('UPDATE account SET balance = 2 WHERE id = 2');
		my $error = attempt($db, sub { one($db, 'SELECT 1/?::int', 0) });
		$db->pg_rollback_to('a');
		$db->do('UPDATE account SET balance = 3 WHERE id = 3');
		$db->pg_release('a');
		$db->commit;
		my @balances = map { 0 + $_ } @{$db->selectcol_arrayref('SELECT balance FROM account WHERE id < 4 ORDER BY id')};
		return {sqlstate => $error, balances => \@balances}, [$db->ping];
	},
	error => sub {
		my $db = shift;
		my $unknown = attempt($db, sub { one($db, 'SELECT id, nosuch FROM account') });
		my @detail = $db->errstr;
		$db->begin_work;
		$db->do("INSERT INTO event (what) VALUES ('lost')");
		my $twice = attempt($db, sub { $db->do('INSERT INTO account VALUES (?, ?)', undef, 1, 1) });
		my $constraint = $db->pg_error_field('constraint');
		my $aborted = attempt($db, sub { one($db, 'SELECT 1') });
		push @detail, $db->errstr, $db->ping, $db->pg_ping;
		$db->rollback;
		return {sqlstate => $unknown, duplicate => $twice, constraint => $constraint, aborted => $aborted, rows => number($db, $count)}, \@detail;
	},
	cancel => sub {
		my ($db, $other) = @_;
		$db->do('UPDATE account SET balance = 0 FROM pg_sleep(60) WHERE id = 1', {pg_async => 1});
		my $sleeping = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
		select(undef, undef, undef, 0.01) while number($other, $sleeping) == 0;
		my $error = attempt($db, sub { $db->pg_cancel; die });
		return {sqlstate => $error, balance => number($db, $balance, 1), usable => number($db, 'SELECT 1')}, [];
	},
	notify => sub {
		my ($db, $other, @heard) = @_;
		$db->do('LISTEN news');
		one($other, "SELECT pg_notify('news', ?)", 'one');
		$db->do("NOTIFY news, 'two'");
		while (@heard < 2) { my $n = $db->pg_notifies; push @heard, $n->[2] if $n }
		return {payloads => \@heard}, [];
	},
	large_object => sub {
		my $db = shift;
		$db->begin_work;
		my $oid = $db->pg_lo_creat($db->{pg_INV_READ} | $db->{pg_INV_WRITE});
		my $fd = $db->pg_lo_open($oid, $db->{pg_INV_READ} | $db->{pg_INV_WRITE});
		$db->pg_lo_write($fd, '0123456789' x 10000, 100000);
		my $size = $db->pg_lo_lseek($fd, 0, 2);
		$db->pg_lo_lseek($fd, 50005, 0);
		$db->pg_lo_read($fd, my $read, 5);
		$db->pg_lo_truncate($fd, 10);
		my $truncated = $db->pg_lo_lseek($fd, 0, 2);
		$db->pg_lo_unlink($oid);
		$db->commit;
		my $gone = attempt($db, sub { one($db, 'SELECT lo_get(4000000000)') });
		return {size => $size, read => $read, truncated => $truncated, gone => $gone}, [];
	},
);

sub update { my $db = shift; $db->do('UPDATE account SET balance = ? WHERE id = ?', undef, 0, 1) }

sub follower {
	my $db = open_db();
	my $pid = $db->{pg_pid};
	my %result = (role => one($db, 'SHOW fencepost.role'), read => number($db, $balance, 1));
	$result{write} = attempt($db, sub { update($db) });
	$result{simple} = attempt($db, sub { $db->do('UPDATE account SET balance = 0') });
	$result{copy} = attempt($db, sub { $db->do('COPY account FROM STDIN') });
	$db->begin_work;
	number($db, $balance, 1);
	$result{transaction} = attempt($db, sub { update($db) });
	$db->rollback;
	return {%result, kept => $db->ping && $db->{pg_pid} == $pid ? JSON::PP::true : JSON::PP::false, again => number($db, $balance, 1)};
}

sub stale {
	my $db = open_db();
	$db->do('UPDATE account SET balance = 101 WHERE id = 1');
	$db->begin_work if shift eq 'stale_transaction';
	number($db, $balance, 1);
	line(ready => JSON::PP::true);
	<STDIN>;
	my $late = attempt($db, sub { update($db) });
	print STDERR $db->errstr, "\n";
	my $broken = $db->ping ? JSON::PP::false : JSON::PP::true;
	$db = open_db();
	return {sqlstate => $late, broken => $broken, role => one($db, 'SHOW fencepost.role'), again => attempt($db, sub { update($db) })};
}

my $part = shift;
if ($part eq 'scenarios') {
	my $other = open_db();
	while (my ($name, $run) = splice @scenarios, 0, 2) {
		$other->do('SELECT reset_all()');
		my ($result, $detail) = $run->(open_db(), $other);
		line(scenario => $name, result => $result, detail => $detail);
	}
} else {
	line(scenario => $part, result => $part eq 'follower' ? follower() : stale($part));
}
