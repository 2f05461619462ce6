<?php
// PDO with its driver pgsql: php pdo.php scenarios|follower|stale|stale_transaction
// The Go package above describes what it does.
declare(strict_types=1);

function connect(): PDO
{
    return new PDO('pgsql:', null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]); // libpq finds the rest
}

function one(PDO $db, string $sql, array $values = []): mixed
{
    $query = $db->prepare($sql);
    $query->execute($values);
    return $query->fetchColumn();
}

function attempt(callable $run): ?PDOException
{
    try {
        $run();
        return null;
    } catch (PDOException $e) {
        return $e;
    }
}

function state(?PDOException $e): string
{
    return $e === null ? 'ok' : ($e->errorInfo[0] ?? (string) $e->getCode());
}

function detail(?PDOException $e): array
{
    return [$e?->errorInfo, $e?->getMessage()];
}

function line(array $line): void
{
    echo json_encode($line), "\n";
}

const COUNT_EVENTS = 'SELECT count(*) FROM event';

$scenarios = [
    'prepared' => function (PDO $db) {
        $add = $db->prepare('UPDATE account SET balance = balance + ? WHERE id = ? RETURNING balance');
        $balances = [];
        for ($i = 1; $i <= 12; $i++) {
            $add->execute([$i, $i % 3 + 1]);
            $balances[] = $add->fetchColumn();
        }
        return [['balances' => $balances], [$add->getColumnMeta(0)['native_type'], $add->rowCount()]];
    },
    'copy_in' => function (PDO $db) {
        $db->pgsqlCopyFromArray('event', range(0, 999), "\t", "\\\\N", 'what');
        return [['copied' => 1000, 'rows' => one($db, COUNT_EVENTS)], null];
    },
    'copy_out' => function (PDO $db) {
        $rows = array_map('rtrim', $db->pgsqlCopyToArray('(SELECT * FROM account ORDER BY id)'));
        return [['rows' => count($rows), 'first' => $rows[0], 'last' => $rows[99]], null];
    },
    'cursor' => function (PDO $db) {
        $db->beginTransaction();
        $cursor = $db->prepare('SELECT id FROM account ORDER BY id', [PDO::ATTR_CURSOR => PDO::CURSOR_SCROLL]);
        $cursor->execute();
        [$sum, $rows, $updated] = [0, 0, 0];
        while (($id = $cursor->fetchColumn()) !== false) {
            [$sum, $rows] = [$sum + $id, $rows + 1];
            if ($id % 10 === 0) {
                $updated += $db->exec("UPDATE account SET balance = $id WHERE id = $id");
            }
        }
        $db->commit();
        return [['rows' => $rows, 'sum' => $sum, 'updated' => $updated], null];
    },
    'savepoint' => function (PDO $db) {
        $db->beginTransaction();
        $db->exec('UPDATE account SET balance = 1 WHERE id = 1');
        $db->exec('SAVEPOINT a');
        $db->exec('UPDATE account SET balance = 2 WHERE id = 2');
        $error = attempt(fn() => one($db, 'SELECT 1/?::int', [0]));
        $db->exec('ROLLBACK TO a');
        $db->exec('UPDATE account SET balance = 3 WHERE id = 3');
        $db->exec('RELEASE a');
        $db->commit();
        $balances = $db->query('SELECT balance FROM account WHERE id < 4 ORDER BY id')->fetchAll(PDO::FETCH_COLUMN);
        return [['sqlstate' => state($error), 'balances' => $balances], detail($error)];
    },
    'error' => function (PDO $db) {
        $unknown = attempt(fn() => $db->query('SELECT id, nosuch FROM account'));
        $db->beginTransaction();
        $db->exec("INSERT INTO event (what) VALUES ('lost')");
        $twice = attempt(fn() => one($db, 'INSERT INTO account VALUES (?, ?)', [1, 1]));
        $aborted = attempt(fn() => $db->query('SELECT 1'));
        $inside = $db->inTransaction();
        $db->commit();
        preg_match('/constraint "(\w+)"/', $twice->getMessage(), $constraint);
        return [[
            'sqlstate' => state($unknown), 'duplicate' => state($twice), 'constraint' => $constraint[1],
            'aborted' => state($aborted), 'rows' => one($db, COUNT_EVENTS),
        ], [detail($unknown), detail($twice), detail($aborted), $inside]];
    },
];

function write(PDO $db): mixed
{
    return one($db, 'UPDATE account SET balance = ? WHERE id = ? RETURNING balance', [0, 1]);
}

function follower(): array
{
    $db = connect();
    $pid = $db->pgsqlGetPid();
    $result = ['role' => one($db, 'SHOW fencepost.role'), 'read' => one($db, 'SELECT balance FROM account WHERE id = ?', [1])];
    $result['write'] = state(attempt(fn() => write($db)));
    $result['simple'] = state(attempt(fn() => $db->exec('UPDATE account SET balance = 0')));
    $result['copy'] = state(attempt(fn() => $db->pgsqlCopyFromArray('account', ["1000\t1"])));
    $db->beginTransaction();
    one($db, 'SELECT balance FROM account WHERE id = ?', [1]);
    $result['transaction'] = state(attempt(fn() => write($db)));
    $db->rollBack();
    return $result + ['kept' => $db->pgsqlGetPid() === $pid, 'again' => one($db, 'SELECT balance FROM account WHERE id = ?', [1])];
}

function stale(bool $transaction): array
{
    $db = connect();
    $db->exec('UPDATE account SET balance = 101 WHERE id = 1');
    if ($transaction) {
        $db->beginTransaction();
    }
    one($db, 'SELECT balance FROM account WHERE id = ?', [1]);
    line(['ready' => true]);
    fgets(STDIN);
    $late = attempt(fn() => write($db));
    fwrite(STDERR, json_encode(detail($late)) . "\n");
    $broken = attempt(fn() => one($db, 'SELECT 1')) !== null;
    $db = connect();
    return ['sqlstate' => state($late), 'broken' => $broken, 'role' => one($db, 'SHOW fencepost.role'), 'again' => state(attempt(fn() => write($db)))];
}

switch ($argv[1]) {
    case 'scenarios':
        $other = connect();
        foreach ($scenarios as $name => $run) {
            $other->query('SELECT reset_all()');
            [$result, $detail] = $run(connect());
            line(['scenario' => $name, 'result' => $result, 'detail' => $detail]);
        }
        break;
    case 'follower':
        line(['scenario' => 'follower', 'result' => follower()]);
        break;
    default:
        line(['scenario' => $argv[1], 'result' => stale($argv[1] === 'stale_transaction')]);
}
