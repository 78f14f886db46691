// What Go's pgx does with a server: says "ok <step>" or "FAIL <step> <why>" of each step.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

var ctx = context.Background()

func step(name string, wanted string, run func() (any, error)) {
	found, err := run()
	if err != nil {
		fmt.Println("FAIL", name, strings.ReplaceAll(err.Error(), "\n", " "))
	} else if text := fmt.Sprint(found); wanted != "" && text != wanted {
		fmt.Println("FAIL", name, "found", text, "wanted", wanted)
	} else {
		fmt.Println("ok", name)
	}
}

func main() {
	address := "postgres://root@127.0.0.1:" + os.Args[1] + "/dev"
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		config, _ := pgx.ParseConfig(address + "?default_query_exec_mode=" + mode)
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			fmt.Println("FAIL connect", err)
			return
		}
		all(conn, mode)
		conn.Close(ctx)
	}
}

func all(conn *pgx.Conn, mode string) {
	step(mode+" create", "", func() (any, error) {
		if _, err := conn.Exec(ctx, "DROP TABLE IF EXISTS gt"); err != nil {
			return nil, err
		}
		return conn.Exec(ctx, "CREATE TABLE gt (id int PRIMARY KEY, t text, n numeric(10,2), at timestamptz, b bytea, a int[], f float8)")
	})
	at := time.Date(2024, 1, 2, 3, 4, 5, 6000, time.UTC)
	step(mode+" insert", "INSERT 0 1", func() (any, error) {
		var n pgtype.Numeric
		_ = n.Scan("1.50")
		return conn.Exec(ctx, "INSERT INTO gt VALUES ($1, $2, $3, $4, $5, $6, $7)", 1, "it's", n, at, []byte{0, 255}, []int32{1, 2}, 1.5)
	})
	step(mode+" select", "it's 2024-01-02 03:04:05.000006 +0000 UTC [0 255] [1 2] 1.5", func() (any, error) {
		var t string
		var when time.Time
		var b []byte
		var a []int32
		var f float64
		err := conn.QueryRow(ctx, "SELECT t, at, b, a, f FROM gt WHERE id = $1", 1).Scan(&t, &when, &b, &a, &f)
		return fmt.Sprint(t, " ", when.UTC(), " ", b, " ", a, " ", f), err
	})
	step(mode+" batch", "[10 11 12]", func() (any, error) {
		batch := &pgx.Batch{}
		for i := 10; i < 13; i++ {
			batch.Queue("INSERT INTO gt (id, t) VALUES ($1, $2) RETURNING id", i, "b")
		}
		results := conn.SendBatch(ctx, batch)
		defer results.Close()
		var ids []int
		for i := 10; i < 13; i++ {
			var id int
			if err := results.QueryRow().Scan(&id); err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		return ids, nil
	})
	step(mode+" copy", "3", func() (any, error) {
		rows := [][]any{{20, "x"}, {21, "y"}, {22, nil}}
		return conn.CopyFrom(ctx, pgx.Identifier{"gt"}, []string{"id", "t"}, pgx.CopyFromRows(rows))
	})
	step(mode+" transaction", "7 1", func() (any, error) {
		tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
		if err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, "UPDATE gt SET t = 'z'"); err != nil {
			return nil, err
		}
		inner, err := tx.Begin(ctx) // a savepoint
		if err != nil {
			return nil, err
		}
		if _, err := inner.Exec(ctx, "DELETE FROM gt"); err != nil {
			return nil, err
		}
		if err := inner.Rollback(ctx); err != nil {
			return nil, err
		}
		var z, other int
		err = tx.QueryRow(ctx, "SELECT count(*) FROM gt WHERE t = 'z'").Scan(&z)
		if err == nil {
			err = tx.Rollback(ctx)
		}
		if err == nil {
			err = conn.QueryRow(ctx, "SELECT count(*) FROM gt WHERE t = 'it''s'").Scan(&other)
		}
		return fmt.Sprint(z, " ", other), err
	})
	step(mode+" error", "42703", func() (any, error) {
		_, err := conn.Exec(ctx, "SELECT nope FROM gt")
		if found, is := err.(*pgconn.PgError); is {
			return found.Code, nil
		}
		return reflect.TypeOf(err), nil
	})
	step(mode+" any", "[1 10]", func() (any, error) {
		rows, err := conn.Query(ctx, "SELECT id FROM gt WHERE id = ANY($1) ORDER BY id", []int32{1, 10, 99})
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[int32])
	})
	step(mode+" type by name", "int4 23", func() (any, error) {
		var name string
		var oid uint32
		err := conn.QueryRow(ctx, "SELECT typname, oid FROM pg_catalog.pg_type WHERE oid = 'int4'::regtype::oid").Scan(&name, &oid)
		return fmt.Sprint(name, " ", oid), err
	})
}
