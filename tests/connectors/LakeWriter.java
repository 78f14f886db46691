import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileMetadata;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Files;
import org.apache.iceberg.RewriteFiles;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.SessionCatalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.io.DeleteWriteResult;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.rest.HTTPClient;
import org.apache.iceberg.rest.RESTSessionCatalog;

/** Commits of Iceberg's own that its Python package cannot make: a line of JSON for each, of the catalog at the argument. */
public class LakeWriter {
  static class Local implements FileIO {
    static String plain(String path) {
      return path.startsWith("file:") ? path.replaceFirst("^file:/+", "/") : path;
    }

    public InputFile newInputFile(String path) {
      return Files.localInput(plain(path));
    }

    public OutputFile newOutputFile(String path) {
      return Files.localOutput(plain(path));
    }

    public void deleteFile(String path) {
      new java.io.File(plain(path)).delete();
    }
  }

  public static void main(String[] arguments) throws Exception {
    RESTSessionCatalog sessions = new RESTSessionCatalog(
        config -> HTTPClient.builder(config).uri(config.get("uri")).build(), (context, properties) -> new Local());
    sessions.initialize("rest", Map.of("uri", arguments[0]));
    var context = SessionCatalog.SessionContext.createEmpty();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      JsonNode command = new ObjectMapper().readTree(line);
      Table table = sessions.loadTable(context, TableIdentifier.parse(command.get("table").asText()));
      if (command.has("deletes")) {
        delete(table, command);
      } else {
        replace(table, command);
      }
      System.out.println("done");
    }
  }

  static Map<String, FileScanTask> files(Table table) throws Exception {
    Map<String, FileScanTask> found = new HashMap<>();
    try (var tasks = table.newScan().planFiles()) {
      tasks.forEach(task -> found.put(task.file().location(), task));
    }
    return found;
  }

  static void delete(Table table, JsonNode command) throws Exception {
    Map<String, FileScanTask> files = files(table);
    RowDelta delta = table.newRowDelta().validateFromSnapshot(table.currentSnapshot().snapshotId());
    for (JsonNode each : command.get("deletes")) {
      FileScanTask task = files.get(each.get("data").asText());
      if (each.get("kind").asText().equals("vector")) {
        OutputFileFactory outputs = OutputFileFactory.builderFor(table, 1, System.nanoTime()).format(FileFormat.PUFFIN).build();
        BaseDVFileWriter writer = new BaseDVFileWriter(outputs, path -> null);
        for (JsonNode position : each.get("positions")) {
          writer.delete(task.file().location(), position.asLong(), task.spec(), task.file().partition());
        }
        writer.close();
        DeleteWriteResult result = writer.result();
        result.deleteFiles().forEach(delta::addDeletes);
        task.deletes().stream().filter(old -> old.format() == FileFormat.PUFFIN).forEach(delta::removeDeletes);
        continue;
      }
      FileMetadata.Builder made = FileMetadata.deleteFileBuilder(table.spec()).withPath(each.get("path").asText())
          .withFormat(FileFormat.PARQUET).withFileSizeInBytes(each.get("size").asLong())
          .withRecordCount(each.get("rows").asLong());
      if (each.get("kind").asText().equals("positions")) {
        made.ofPositionDeletes();
      } else {
        int[] ids = new int[each.get("ids").size()];
        for (int i = 0; i < ids.length; i++) {
          ids[i] = each.get("ids").get(i).asInt();
        }
        made.ofEqualityDeletes(ids);
      }
      if (table.spec().isPartitioned()) {
        made.withPartition(task.file().partition());
      }
      delta.addDeletes(made.build());
    }
    if (command.has("add")) {
      delta.addRows(file(table, command.get("add")));
    }
    delta.commit();
  }

  /** Files replaced by one with the same rows; without any, one is added. */
  static void replace(Table table, JsonNode command) throws Exception {
    Map<String, FileScanTask> files = files(table);
    RewriteFiles rewrite = table.newRewrite();
    if (table.currentSnapshot() != null) {
      rewrite.validateFromSnapshot(table.currentSnapshot().snapshotId());
    }
    List<DeleteFile> deletes = new ArrayList<>();
    DataFile first = null;
    for (JsonNode path : command.get("remove")) {
      FileScanTask task = files.get(path.asText());
      first = task.file();
      rewrite.deleteFile(task.file());
      deletes.addAll(task.deletes());
    }
    DataFile made = file(table, command.get("add"));
    if (first == null) {
      table.newAppend().appendFile(made).commit();
      return;
    }
    rewrite.addFile(made);
    deletes.stream().filter(each -> each.format() == FileFormat.PUFFIN).forEach(rewrite::deleteFile);
    rewrite.commit();
  }

  static DataFile file(Table table, JsonNode added) {
    DataFiles.Builder made = DataFiles.builder(table.spec()).withPath(added.get("path").asText())
        .withFormat(FileFormat.PARQUET).withFileSizeInBytes(added.get("size").asLong())
        .withRecordCount(added.get("rows").asLong());
    if (table.spec().isPartitioned()) {
      made.withPartitionPath(added.get("partition").asText());
    }
    return made.build();
  }
}
