import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** A REST catalog that keeps its tables in memory, at the port of its argument. */
public class RestCatalog {
  public static void main(String[] arguments) throws Exception {
    InMemoryCatalog catalog = new InMemoryCatalog();
    catalog.initialize("rest", Map.of());
    ServletContextHandler context = new ServletContextHandler();
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
    server.setHandler(context);
    server.start();
    server.join();
  }
}
