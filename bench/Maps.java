import java.util.HashMap;

/**
 * A map of strings, filled in order and read twice out of order.
 *
 * <p>{@code java Maps.java [ENTRIES]}: about 190 bytes an entry; default 2 million, 360 MiB.
 */
public class Maps {
	public static void main(String[] arguments) {
		int entries = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 2_000_000;
		HashMap<Integer, String> map = new HashMap<>();
		for (int i = 0; i < entries; i++)
			map.put(i, "value-" + i * 7919L % 1_000_000);
		long sum = 0;
		for (int round = 0; round < 2; round++)
			for (int i = 0; i < entries; i++)
				sum = sum * 31 + map.get((int) (i * 104_729L % entries)).hashCode();
		System.out.println(sum);
	}
}
