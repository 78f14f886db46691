// What node-postgres does with a server: says "ok <step>" or "FAIL <step> <why>" of each step.
const { Client, Pool } = require("pg");
const Cursor = require("pg-cursor");
const { from, to } = require("pg-copy-streams");
const { pipeline } = require("stream/promises");
const { Readable } = require("stream");

const where = { host: "127.0.0.1", port: +process.argv[2], user: "root", database: "dev" };

async function main() {
  const client = new Client(where);
  await client.connect();
  const step = async (name, wanted, run) => {
    try {
      const found = JSON.stringify(await run());
      console.log(found === JSON.stringify(wanted) ? `ok ${name}` : `FAIL ${name} found ${found}`);
    } catch (error) {
      console.log(`FAIL ${name} ${error.code} ${String(error).replaceAll("\n", " ")}`);
    }
  };
  await client.query("DROP TABLE IF EXISTS nt");
  await client.query(
    "CREATE TABLE nt (id int PRIMARY KEY, t text, a text[], at timestamptz, n numeric(10,2), b bytea, big bigint)");
  await step("insert", [{ id: 1 }], async () => (await client.query(
    "INSERT INTO nt VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id",
    [1, "it's", ["p", 'q,"'], new Date(0), "1.50", Buffer.from([0, 255]), "9007199254740993"])).rows);
  await step("select", [{
    id: 1, t: "it's", a: ["p", 'q,"'], at: "1970-01-01T00:00:00.000Z", n: "1.50",
    b: { type: "Buffer", data: [0, 255] }, big: "9007199254740993",
  }], async () => (await client.query("SELECT * FROM nt WHERE id = $1", [1])).rows);
  await step("named statement", [[{ t: "it's" }], [{ t: "it's" }]], async () => {
    const found = [];
    for (let i = 0; i < 2; i++)
      found.push((await client.query({ name: "q", text: "SELECT t FROM nt WHERE id = $1", values: [1] })).rows);
    return found;
  });
  await step("array mode", [[1, 2]], async () => (await client.query({ text: "SELECT 1 AS a, 2 AS a", rowMode: "array" })).rows);
  await step("transaction", [{ t: "it's" }], async () => {
    await client.query("BEGIN");
    await client.query("UPDATE nt SET t = $1", ["z"]);
    await client.query("ROLLBACK");
    return (await client.query("SELECT t FROM nt")).rows;
  });
  await step("error", ["42703", "8", "ERROR"], async () => {
    try { await client.query("SELECT nope"); } catch (e) { return [e.code, e.position, e.severity]; }
  });
  await step("cursor", [{ i: 1 }, { i: 2 }, { i: 3 }], async () => {
    const cursor = client.query(new Cursor("SELECT i FROM generate_series(1, 10) AS g(i) ORDER BY i"));
    const rows = await cursor.read(3);
    await cursor.close();
    return rows;
  });
  await step("copy", "1\tit's\n5\tfive\n6\tsix\n", async () => {
    await pipeline(Readable.from(["5\tfive\n6\t", "six\n"]), client.query(from("COPY nt (id, t) FROM STDIN")));
    let text = "";
    for await (const part of client.query(to("COPY (SELECT id, t FROM nt ORDER BY id) TO STDOUT"))) text += part;
    return text;
  });
  await step("any", [{ id: 1 }, { id: 5 }], async () =>
    (await client.query("SELECT id FROM nt WHERE id = ANY($1) ORDER BY id", [[1, 5, 99]])).rows);
  await step("pool", [0, 1, 2, 3, 4, 5, 6, 7], async () => {
    const pool = new Pool({ ...where, max: 4 });
    const found = await Promise.all([...Array(8)].map((_, i) => pool.query("SELECT $1::int AS i", [i])));
    await pool.end();
    return found.map((f) => f.rows[0].i);
  });
  await step("columns as query builders ask for them", 7, async () => (await client.query(
    "SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_name = $1 AND " +
    "table_catalog = current_database() AND table_schema = current_schema()", ["nt"])).rows.length);
  await step("schema as an object mapper asks for it", [{ current_schema: "public" }], async () =>
    (await client.query("SELECT * FROM current_schema()")).rows);
  await step("listen is refused", "0A000", async () => {
    try { await client.query("LISTEN x"); } catch (e) { return e.code; }
  });
  await client.end();
}

main().catch((error) => { console.log("FAIL", error); process.exit(1); });
