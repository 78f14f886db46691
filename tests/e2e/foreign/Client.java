// What PostgreSQL's JDBC driver does with a server: says "ok <step>" or "FAIL <step> <why>" of each step.
import java.io.StringReader;
import java.math.BigDecimal;
import java.sql.*;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.util.TimeZone;

public class Client {
    interface Step { Object run() throws Exception; }

    static void step(String name, String wanted, Step step) {
        try {
            String found = String.valueOf(step.run());
            System.out.println(wanted == null || found.equals(wanted) ? "ok " + name : "FAIL " + name + " found " + found);
        } catch (Throwable error) {
            System.out.println("FAIL " + name + " " + String.valueOf(error).replace("\n", " "));
        }
    }

    /** The rows of a result, of some columns. */
    static String rows(ResultSet result, String... columns) throws Exception {
        StringBuilder text = new StringBuilder();
        int count = 0;
        while (result.next()) {
            count++;
            for (String column : columns) text.append(' ').append(result.getString(column));
        }
        result.close();
        return columns.length == 0 ? "" + count : text.toString().trim();
    }

    static Connection connect(String port, String options) throws Exception {
        return DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + port + "/dev" + options, "root", "");
    }

    static void queries(String port, String options) throws Exception {
        Connection c = connect(port, options);
        Statement s = c.createStatement();
        String all = options + " ";
        s.execute("DROP TABLE IF EXISTS jt");
        s.execute("CREATE TABLE jt (id int PRIMARY KEY, t varchar NOT NULL, n numeric(10,2), b boolean, d date, ts timestamp, "
            + "tz timestamptz, f double precision, by bytea, a int[])");
        step(all + "batch", "20", () -> {
            PreparedStatement p = c.prepareStatement("INSERT INTO jt VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
            for (int i = 0; i < 20; i++) {
                p.setInt(1, i);
                p.setString(2, "t" + i);
                p.setBigDecimal(3, new BigDecimal("1.25"));
                p.setBoolean(4, true);
                p.setDate(5, java.sql.Date.valueOf("2024-01-02"));
                p.setTimestamp(6, Timestamp.valueOf("2024-01-02 03:04:05"));
                p.setObject(7, OffsetDateTime.parse("2024-01-02T03:04:05Z"));
                p.setDouble(8, 1.5);
                p.setBytes(9, new byte[] {0, 1, (byte) 255});
                p.setArray(10, c.createArrayOf("int4", new Integer[] {1, 2, null}));
                p.addBatch();
            }
            return p.executeBatch().length;
        });
        step(all + "prepared, text and then binary", "5 t5 1.25 t 2024-01-02 2024-01-02 03:04:05 1.5", () -> {
            PreparedStatement p = c.prepareStatement("SELECT * FROM jt WHERE id = ?");
            String found = "";
            for (int i = 0; i < 8; i++) {
                p.setInt(1, 5);
                found = rows(p.executeQuery(), "id", "t", "n", "b", "d", "ts", "f");
            }
            return found;
        });
        step(all + "objects", "BigDecimal Timestamp byte[] PgArray Double Boolean 2024-01-02T03:04:05", () -> {
            ResultSet r = s.executeQuery("SELECT n, ts, by, a, f, b FROM jt WHERE id = 5");
            r.next();
            String found = "";
            for (int i = 1; i <= 6; i++) found += r.getObject(i).getClass().getSimpleName() + " ";
            return found + r.getObject(2, LocalDateTime.class);
        });
        step(all + "array", "[1, 2, null]", () -> {
            ResultSet r = s.executeQuery("SELECT a FROM jt WHERE id = 5");
            r.next();
            return java.util.Arrays.toString((Object[]) r.getArray(1).getArray());
        });
        step(all + "null", "1 null", () -> {
            PreparedStatement p = c.prepareStatement("UPDATE jt SET n = ? WHERE id = ?");
            p.setNull(1, Types.NUMERIC);
            p.setInt(2, 1);
            return p.executeUpdate() + " " + rows(s.executeQuery("SELECT n FROM jt WHERE id = 1"), "n");
        });
        step(all + "fetch size", "20", () -> {
            c.setAutoCommit(false);
            Statement q = c.createStatement();
            q.setFetchSize(5);
            String found = rows(q.executeQuery("SELECT id FROM jt ORDER BY id"));
            c.commit();
            c.setAutoCommit(true);
            return found;
        });
        step(all + "savepoint", "20 20", () -> {
            c.setAutoCommit(false);
            Savepoint savepoint = c.setSavepoint("x");
            s.executeUpdate("DELETE FROM jt");
            c.rollback(savepoint);
            String inside = rows(s.executeQuery("SELECT count(*) AS n FROM jt"), "n");
            c.rollback();
            c.setAutoCommit(true);
            return inside + " " + rows(s.executeQuery("SELECT count(*) AS n FROM jt"), "n");
        });
        step(all + "read-only transaction", "25006", () -> {
            c.setReadOnly(true);
            c.setAutoCommit(false);
            try {
                s.executeUpdate("DELETE FROM jt");
                return "not refused";
            } catch (SQLException error) {
                return error.getSQLState();
            } finally {
                c.rollback();
                c.setAutoCommit(true);
                c.setReadOnly(false);
            }
        });
        step(all + "time-out", "57014", () -> {
            Statement q = c.createStatement();
            q.setQueryTimeout(1);
            try {
                q.executeQuery("SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b, generate_series(1, 1000) c");
                return "not stopped";
            } catch (SQLException error) {
                return error.getSQLState();
            }
        });
        c.close();
    }

    static void metadata(String port) throws Exception {
        Connection c = connect(port, "");
        Statement s = c.createStatement();
        s.execute("DROP INDEX IF EXISTS jt_t");
        s.execute("CREATE INDEX jt_t ON jt (t)");
        DatabaseMetaData d = c.getMetaData();
        step("tables", "jt", () -> rows(d.getTables(null, "public", "jt", new String[] {"TABLE"}), "TABLE_NAME"));
        step("columns", "id int4 1 NO t text 2 NO", () -> {
            ResultSet r = d.getColumns(null, null, "jt", null);
            String found = "";
            for (int i = 0; i < 2 && r.next(); i++)
                found += r.getString("COLUMN_NAME") + " " + r.getString("TYPE_NAME") + " " + r.getString("ORDINAL_POSITION")
                    + " " + r.getString("IS_NULLABLE") + " ";
            return found.trim();
        });
        step("primary key", "jt_pkey id 1", () -> rows(d.getPrimaryKeys(null, null, "jt"), "PK_NAME", "COLUMN_NAME", "KEY_SEQ"));
        step("indexes", "f jt_pkey id t jt_t t", () ->
            rows(d.getIndexInfo(null, null, "jt", false, false), "NON_UNIQUE", "INDEX_NAME", "COLUMN_NAME"));
        step("foreign keys", "0 0 0", () -> rows(d.getImportedKeys(null, null, "jt")) + " "
            + rows(d.getExportedKeys(null, null, "jt")) + " " + rows(d.getCrossReference(null, null, "jt", null, null, "jt")));
        step("schemas", null, () -> rows(d.getSchemas(), "TABLE_SCHEM"));
        step("catalogs", "dev", () -> rows(d.getCatalogs(), "TABLE_CAT"));
        step("types", null, () -> rows(d.getTypeInfo()));
        step("user types", "jt", () -> rows(d.getUDTs(null, null, "jt", null), "TYPE_NAME"));
        step("functions", "lower", () -> rows(d.getFunctions(null, null, "lower"), "FUNCTION_NAME"));
        step("columns of functions", null, () -> rows(d.getFunctionColumns(null, null, "lower", null)));
        step("procedures", "0", () -> rows(d.getProcedures(null, null, "lower")));
        step("rights", "DELETE INSERT SELECT UPDATE", () -> {
            ResultSet r = d.getTablePrivileges(null, "public", "jt");
            String found = "";
            while (r.next()) if ("DELETE INSERT SELECT UPDATE".contains(r.getString("PRIVILEGE"))) found += r.getString("PRIVILEGE") + " ";
            return found.trim();
        });
        step("best row identifier", "id", () -> rows(d.getBestRowIdentifier(null, null, "jt", 1, false), "COLUMN_NAME"));
        step("keywords", null, () -> d.getSQLKeywords().length());
        step("parameters", "int4 text", () -> {
            ParameterMetaData p = c.prepareStatement("SELECT id FROM jt WHERE id = ? AND t = ?").getParameterMetaData();
            return p.getParameterTypeName(1) + " " + p.getParameterTypeName(2);
        });
        step("result", "id int4 t text", () -> {
            ResultSetMetaData m = s.executeQuery("SELECT id, t FROM jt LIMIT 1").getMetaData();
            return m.getColumnName(1) + " " + m.getColumnTypeName(1) + " " + m.getColumnName(2) + " " + m.getColumnTypeName(2);
        });
        step("generated keys", "100", () -> {
            PreparedStatement p = c.prepareStatement("INSERT INTO jt (id, t) VALUES (100, 'x')", Statement.RETURN_GENERATED_KEYS);
            p.executeUpdate();
            return rows(p.getGeneratedKeys(), "id");
        });
        step("rows changed in place", "q new", () -> {
            Statement u = c.createStatement(ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE);
            ResultSet r = u.executeQuery("SELECT id, t FROM jt WHERE id = 100");
            r.next();
            r.updateString("t", "q");
            r.updateRow();
            r.moveToInsertRow();
            r.updateInt("id", 300);
            r.updateString("t", "new");
            r.insertRow();
            return rows(s.executeQuery("SELECT t FROM jt WHERE id IN (100, 300) ORDER BY id"), "t");
        });
        step("a row deleted in place", "q", () -> {
            Statement u = c.createStatement(ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE);
            ResultSet r = u.executeQuery("SELECT * FROM jt WHERE id = 300");
            r.next();
            r.deleteRow();
            return rows(s.executeQuery("SELECT t FROM jt WHERE id IN (100, 300) ORDER BY id"), "t");
        });
        step("copy", "1", () -> ((org.postgresql.PGConnection) c).getCopyAPI()
            .copyIn("COPY jt (id, t) FROM STDIN", new StringReader("500\tz\n")));
        step("schema and client", "public j true", () -> {
            c.setSchema("public");
            c.setClientInfo("ApplicationName", "j");
            return c.getSchema() + " " + c.getClientInfo("ApplicationName") + " " + c.isValid(5);
        });
        step("escapes", "ab 2024-01-01", () -> rows(s.executeQuery("SELECT {fn concat('a', 'b')} AS x, {d '2024-01-01'} AS y"), "x", "y"));
        c.close();
    }

    /** The driver asks for the zone of its machine, and takes times in it. */
    static void zones(String port, String id, String shown, String wanted) throws Exception {
        TimeZone before = TimeZone.getDefault();
        TimeZone.setDefault(TimeZone.getTimeZone(id));
        try {
            Connection c = connect(port, "");
            Statement s = c.createStatement();
            step(id, shown + " " + wanted, () -> {
                s.execute("DROP TABLE IF EXISTS jz");
                s.execute("CREATE TABLE jz (id int PRIMARY KEY, tz timestamptz, ts timestamp)");
                PreparedStatement p = c.prepareStatement("INSERT INTO jz VALUES (1, ?, ?)");
                p.setTimestamp(1, Timestamp.valueOf("2024-07-01 14:00:00"));
                p.setTimestamp(2, Timestamp.valueOf("2024-07-01 14:00:00"));
                p.executeUpdate();
                ResultSet r = s.executeQuery("SHOW timezone");
                r.next();
                String found = r.getString(1);
                r = s.executeQuery("SELECT tz, tz::text, ts, tz = '2024-07-01 14:00' FROM jz");
                r.next();
                found += " " + r.getTimestamp(1) + " " + r.getString(2) + " " + r.getTimestamp(3) + " " + r.getString(4);
                return found + " " + r.getObject(1, OffsetDateTime.class).toInstant();
            });
            c.close();
        } finally {
            TimeZone.setDefault(before);
        }
    }

    public static void main(String[] arguments) throws Exception {
        queries(arguments[0], "");
        queries(arguments[0], "?preferQueryMode=simple");
        queries(arguments[0], "?reWriteBatchedInserts=true&prepareThreshold=1");
        metadata(arguments[0]);
        zones(arguments[0], "Europe/Berlin", "Europe/Berlin",
            "2024-07-01 14:00:00.0 2024-07-01 14:00:00+02 2024-07-01 14:00:00.0 t 2024-07-01T12:00:00Z");
        zones(arguments[0], "GMT+02:00", "GMT-02:00",
            "2024-07-01 14:00:00.0 2024-07-01 14:00:00+02 2024-07-01 14:00:00.0 t 2024-07-01T12:00:00Z");
    }
}
